"""Commands that share a folder: other heads, or the same heads at the same time.

The law: the tables are a function of the records, whoever computed them, in whatever order.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forked_runs
from attention_plasticity.run import compute
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from runs_here import Here, Notes, analyse, compared_info, computed, records, run_info, tables
from waiting import PATIENCE

LAYERS, Q_HEADS = 2, 4
HEADS = [(layer, head) for layer in range(LAYERS) for head in range(Q_HEADS)]
FAST: dict[str, Any] = {"num_pairs_per_bin": 8, "num_pairs_per_bucket": 8, "bin_size": 256}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    made = make_dump(folder, layers=LAYERS, q_heads=Q_HEADS, k_heads=2, n=60, d=4)
    return add_rotary(made, LAYERS, 4)


@pytest.fixture(scope="module")
def whole(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run of all heads."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    analyse(dump, out, **FAST)
    return out


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_SECONDS_BETWEEN_CHECKS", 0.02)


def assert_same(out: Path, whole: Path) -> None:
    assert tables(out) == tables(whole)
    assert compared_info(out) == compared_info(whole)


@given(
    layers=st.lists(st.sampled_from([[0], [1]]), unique_by=tuple, min_size=2, max_size=2),
    heads=st.permutations(range(Q_HEADS)),
    cut=st.integers(1, Q_HEADS - 1),
    by_layer=st.booleans(),
)
@settings(max_examples=6)
def test_any_shares_in_any_order_make_the_tables_of_one_run(
    dump: Path,
    whole: Path,
    tmp_path_factory: pytest.TempPathFactory,
    layers: list[list[int]],
    heads: list[int],
    cut: int,
    by_layer: bool,
) -> None:
    out = tmp_path_factory.mktemp("shares") / "out"
    parts = [heads[:cut], heads[cut:]]
    shares: list[dict[str, Any]] = [{"heads": sorted(part)} for part in parts]
    if by_layer:
        shares = [{"layers": one, **share} for one in layers for share in shares]
    engine, done = Here(), set()
    for number, share in enumerate(shares):
        analyse(dump, out, engine=engine, **share, **FAST)
        done |= {
            (layer, head) for layer in share.get("layers", range(LAYERS)) for head in share["heads"]
        }
        left = [list(head) for head in HEADS if head not in done]
        assert run_info(out)["not_analysed"] == left
        assert len(pd.read_csv(out / "head_metrics.csv")) == len(done)
        assert (number == len(shares) - 1) == (not left)
    assert sorted(engine.heads) == HEADS  # every head once
    assert_same(out, whole)
    assert computed(dump, out, **FAST) == []


def test_shares_in_two_processes_at_the_same_time(dump: Path, whole: Path, tmp_path: Path) -> None:
    """The last command has all heads in its tables."""
    shares = ({"layers": [0]}, {"layers": [1]}, {"heads": [3]})
    processes = [forked_runs.start(dump, tmp_path, FAST | share) for share in shares]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert forked_runs.computed_heads(tmp_path) == HEADS
    assert_same(tmp_path, whole)


def test_a_head_that_fails_stops_no_other_and_is_tried_again(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=2, q_heads=2, k_heads=1, n=60, d=4)
    out, file = tmp_path / "out", dump / "l00h01q" / "data.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    first = analyse(dump, out, layers=[0])
    [failure] = first.failures
    assert (failure.layer, failure.q_head, failure.k_head) == (0, 1, 0)
    assert str(file) in failure.reason
    assert first.info["heads"] == {
        **{"analysed": 1, "failed": 1},
        **{"not_analysed": 2, "not_captured": 0},
    }
    other = analyse(dump, out, layers=[1])  # another command keeps the failure and its reason
    assert other.failures == [failure]
    assert other.info["heads"]["analysed"] == 3
    assert first.has_failures
    assert computed(dump, out) == [(0, 1)]
    file.write_bytes(content)
    again = analyse(dump, out)
    assert again.failures == []
    assert again.info["heads"] == {
        **{"analysed": 4, "failed": 0},
        **{"not_analysed": 0, "not_captured": 0},
    }
    analyse(dump, tmp_path / "new")
    assert_same(out, tmp_path / "new")


# the same heads at the same time


def test_two_commands_on_the_same_heads_compute_each_once(
    dump: Path, whole: Path, tmp_path: Path
) -> None:
    """The first command waits inside a head until the second has nothing else to do."""
    waits, notes = threading.Event(), Notes()
    noted: list[str] = []

    def note(text: str) -> None:
        noted.append(text)
        if "another command computes" in text:
            waits.set()

    notes.note = note  # type: ignore[method-assign]
    inside = threading.Event()

    def hold(layer: int, k_head: int) -> None:
        inside.set()
        assert waits.wait(PATIENCE)

    first, second = Here(hold), Here()
    thread = threading.Thread(
        target=analyse, args=(dump, tmp_path), kwargs={"engine": first, **FAST}
    )
    thread.start()
    assert inside.wait(PATIENCE)
    outcome = analyse(dump, tmp_path, engine=second, watcher=notes, **FAST)
    thread.join()
    assert sorted(first.heads + second.heads) == HEADS
    assert first.heads
    assert second.heads
    assert outcome.info["heads"]["analysed"] == len(HEADS)
    assert "another command computes 2 heads of this run; waiting for it" in noted
    assert_same(tmp_path, whole)


def test_kills_at_any_moment_lose_nothing(dump: Path, whole: Path, tmp_path: Path) -> None:
    """A record or a table is there or not, and never a part of it."""
    done: set[str] = set()
    for moment in (1, 2, 3, 6, 11, 3, 12, 13, 14, 18, 20):
        process = forked_runs.start(dump, tmp_path, FAST, die_at=moment)
        process.join()
        assert process.exitcode == 9, moment
        now = {path.name for path in records(tmp_path)}
        assert done <= now
        done = now
        assert not (tmp_path / "run.json").exists()
    assert len(done) == len(HEADS)
    assert computed(dump, tmp_path, **FAST) == []
    assert_same(tmp_path, whole)
