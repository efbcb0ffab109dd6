"""Several processes share a capture of uneven texts: who runs what, and what deaths cost."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from qk_dump.layout import UNFINISHED
from rank_processes import Forwards, ended, run_ranks, start_alone
from sniffing import same_bytes, tables_of, words
from tiny_texts import save_texts, save_tiny_model

LENGTHS = [20, 12, 25, 18, 0, 22, 30, 400, 15, 28, 17, 24]  # one is 20 times longer
LONGEST = 7
BATCHES = range(len(LENGTHS))
KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(place / "model"), save_texts(place / "texts", LENGTHS)


@pytest.fixture(scope="module")
def whole(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of one process."""
    dump = tmp_path_factory.mktemp("whole") / "dump"
    assert ended(start_alone(words(*inputs, dump))) == 0
    return dump


def assert_same(dump: Path, whole: Path) -> None:
    assert same_bytes(dump, whole)
    assert tables_of(dump)["examples"] == tables_of(whole)["examples"]
    assert not (dump / UNFINISHED).exists()


def test_four_processes_run_the_longest_texts_first_and_each_text_once(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    forwards = Forwards(tmp_path / "log", 4)
    ranks = run_ranks(words(*inputs, tmp_path / "dump"), forwards, tmp_path)
    assert ranks.codes == [0] * 4
    assert_same(tmp_path / "dump", whole)
    batches = [batch for _, batch in forwards.run()]
    assert sorted(batches) == [*BATCHES]
    longest = sorted(BATCHES, key=lambda batch: -LENGTHS[batch])
    assert longest[0] in batches[:4]
    assert {*batches[:4]} <= {*longest[:8]}  # a process may have reserved its second batch early


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
def test_a_killed_process_leaves_its_texts_to_the_others(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path, streaming: bool
) -> None:
    forwards = Forwards(tmp_path / "log", 2, kills={1: 2})
    flags = words(
        *inputs, tmp_path / "dump", dataset__streaming=streaming, output__save_seconds=3600
    )
    ranks = run_ranks(flags, forwards, tmp_path)
    assert ranks.codes == [0, KILLED]
    assert_same(tmp_path / "dump", whole)
    lost = [batch for rank, batch in forwards.run() if rank == 1]
    again = [batch for rank, batch in forwards.run() if rank == 0]
    assert len(lost) == 2
    # also the two; the first of them was saved if there was no other batch to reserve
    assert {*BATCHES} - {*again} <= {lost[0]}
    assert len(again) == len({*again})


def test_when_all_are_killed_the_next_launch_runs_only_what_is_missing(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    flags = words(*inputs, tmp_path / "dump", output__save_seconds=1e-6)
    first = Forwards(tmp_path / "first", 2, kills={0: 4, 1: 3}, dump=tmp_path / "dump")
    assert run_ranks(flags, first, tmp_path).codes == [KILLED] * 2
    lost = dict(first.run())  # the last batch of each
    second = Forwards(tmp_path / "second", 2)
    ranks = run_ranks(flags, second, tmp_path)
    assert ranks.codes == [0, 0]
    assert "texts are finished" in ranks.told[0]
    assert_same(tmp_path / "dump", whole)
    rest = [batch for _, batch in second.run()]
    saved = {batch for _, batch in first.run()} - {*lost.values()}
    assert len(saved) == 5
    assert sorted(rest) == sorted({*BATCHES} - saved)


def test_a_text_that_kills_its_process_is_given_up(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    forwards = Forwards(tmp_path / "log", 3, deadly=LONGEST)
    flags = words(*inputs, tmp_path / "dump")
    ranks = run_ranks(flags, forwards, tmp_path)
    assert sorted(map(str, ranks.codes)) == ["-9", "-9", "1"]
    [told] = [told for code, told in zip(ranks.codes, ranks.told, strict=True) if code == 1]
    assert f"error: texts {LONGEST}: two processes died while they ran them" in told
    rest = Forwards(tmp_path / "rest", 2)
    run_ranks(flags, Forwards(tmp_path / "rest", 1), tmp_path)
    assert [batch for _, batch in rest.run()] == [LONGEST]
    assert_same(tmp_path / "dump", whole)


def test_heads_of_a_tensor_parallel_model_have_their_true_numbers(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path
) -> None:
    flags = words(
        *inputs, tmp_path / "dump", model__tensor_parallel=True, output__save_seconds=1e-6
    )
    first = Forwards(tmp_path / "first", 2, kills={1: 6}, dump=tmp_path / "dump", in_step=True)
    ranks = run_ranks(flags, first, tmp_path)
    assert ranks.codes == [1, KILLED]
    assert "error: another process of this capture has ended" in ranks.told[0]
    second = Forwards(tmp_path / "second", 2)
    assert run_ranks(flags, second, tmp_path).codes == [0, 0]
    rest = {rank: [batch for owner, batch in second.run() if owner == rank] for rank in range(2)}
    saved = rest[0][0]  # the first process may have lost rows that waited to be written
    assert 3 <= saved <= 5
    assert rest[0] == rest[1] == [*BATCHES[saved:]]
    found, expected = tables_of(tmp_path / "dump"), tables_of(whole)
    assert found.keys() == expected.keys()
    assert found.pop("examples") == expected.pop("examples")
    for head, table in expected.items():
        exact = ["bucket", "example_id", "position"]
        assert found[head].select(exact) == table.select(exact)
        for column in {"vector", "lse", "mass_by_distance"} & {*table.column_names}:
            ours, theirs = (np.array(rows[column].to_pylist()) for rows in (found[head], table))
            np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_tensor_parallelism_that_cannot_be_is_refused(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    flags = words(*inputs, tmp_path / "dump", model__tensor_parallel=True)
    for world, message in (
        (1, "there is one process; start several with torchrun"),
        (4, "2 key heads cannot be spread evenly over 4 processes"),
    ):
        ranks = run_ranks(flags, Forwards(tmp_path / "log", world), tmp_path)
        assert ranks.codes == [2] * world
        assert all(message in told for told in ranks.told)
