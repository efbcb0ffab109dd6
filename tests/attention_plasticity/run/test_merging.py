"""Runs of several commands: every head once, and the same bytes as one run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import attention_plasticity as ap
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.merging import (
    NOT_COMPUTED,
    Shard,
    ShardOutcome,
    merge_shards,
    run_shard,
    shard_of,
)
from attention_plasticity.run.plan import make_plan
from attention_plasticity.run.runner import run_analysis
from commands_here import run_here
from dumps import add_rotary, head_rows, make_dump, rotary_file
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.layout import HeadId
from qk_dump.source import open_dump
from qk_dump.writer import write_head
from qk_toolkit.files import try_lock


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    return add_rotary(make_dump(folder, layers=3, q_heads=4, k_heads=2, n=120), layers=3)


@pytest.fixture(scope="module")
def whole(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = run_analysis(config(dump, tmp_path_factory.mktemp("whole")))
    assert "bins" in run.paths.tables
    return run


def config(dump: Path, out: Path, **fields: Any) -> ap.RunnerConfig:
    return ap.make_config(
        dataset_local_root=str(dump), output_dir=str(out), max_workers=1, **fields
    )


def shard(dump: Path, out: Path, index: int, count: int = 3, **fields: Any) -> ShardOutcome:
    return run_shard(
        config(dump, out, engine="shards", num_shards=count, shard_index=index, **fields)
    )


def assert_same(merged: Outcome, whole: Outcome) -> None:
    for path, other in zip(merged.paths.tables.values(), whole.paths.tables.values(), strict=True):
        assert path.read_bytes() == other.read_bytes()
    one, two = (json.loads(outcome.paths.run.read_text()) for outcome in (merged, whole))
    for info in (one, two):
        del info["finished"], info["seconds"], info["config"]["output_dir"]
    assert one == two


def test_shards_of_one_folder_make_the_tables_of_one_run(
    dump: Path, whole: Outcome, tmp_path: Path
) -> None:
    outcomes = [shard(dump, tmp_path, index) for index in (2, 0)]
    assert [outcome.recorded for outcome in outcomes] == [4, 8]
    merged = merge_shards([tmp_path])
    assert len(merged.failures) == 4
    assert {failure.reason for failure in merged.failures} == {NOT_COMPUTED}
    again = [shard(dump, tmp_path, index) for index in (1, 1)]  # a repeated shard does nothing
    assert [outcome.recorded for outcome in again] == [12, 12]
    assert_same(merge_shards([tmp_path]), whole)


def test_shards_with_folders_of_their_own(dump: Path, whole: Outcome, tmp_path: Path) -> None:
    folders = [tmp_path / str(index) for index in range(3)]
    for index, folder in enumerate(folders):
        shard(dump, folder, index)
    shutil.copytree(folders[0], tmp_path / "copy")  # a head can be in two folders
    merged = merge_shards([*folders, tmp_path / "copy"], tmp_path / "all")
    assert_same(merged, whole)
    info = json.loads(merged.paths.run.read_text())
    assert info["config"]["output_dir"] == str(tmp_path / "all")
    done = run_here("merge", *folders)
    assert done.returncode == 0
    assert f"{folders[0]}/head_metrics.csv" in done.stdout
    other = tmp_path / "other"
    shard(dump, other, 0, seed=5)
    with pytest.raises(ap.ConfigError, match=r"other: differs from .*0 in seed \(0 and 5\)"):
        merge_shards([folders[0], other])


def test_shards_with_rotary_records_in_a_file(
    dump: Path, whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be elsewhere for every shard; its content must be the same."""
    bare, out = Path(shutil.copytree(dump, tmp_path / "bare")), tmp_path / "out"
    file = rotary_file(dump, tmp_path / "rotary.json")
    add_rotary(bare, layers=3, rotary=None, rotary_problem="not measured")
    monkeypatch.chdir(tmp_path)
    places = ["rotary.json", str(file), str(shutil.copy(file, tmp_path / "copy.json"))]
    for index, place in enumerate(places):
        shard(bare, out, index, rotary=place)
    merged = merge_shards([out])
    assert "bins" in merged.paths.tables
    for kind, path in whole.paths.tables.items():
        assert merged.paths.tables[kind].read_bytes() == path.read_bytes(), kind
    with pytest.raises(ap.ConfigError, match="differs in rotary"):
        shard(bare, out, 0)


def test_dumps_are_not_mixed(tmp_path: Path) -> None:
    one, two = (
        make_dump(tmp_path / name, layers=2, q_heads=1, k_heads=1, n=60, drift=drift)
        for name, drift in (("modelA", 1.0), ("modelB", 2.0))
    )
    shard(one, tmp_path / "out", 0, 2)
    expected = rf"out: holds results .* differs in the dump \({one} then, {two} now\)"
    with pytest.raises(ap.ConfigError, match=rf"{expected}.* or remove {tmp_path}/out\.$"):
        shard(two, tmp_path / "out", 1, 2)
    shard(two, tmp_path / "other", 1, 2)
    with pytest.raises(ap.ConfigError, match=r"other: was computed from another dump than .*out"):
        merge_shards([tmp_path / "out", tmp_path / "other"], tmp_path / "merged")
    for path in (tmp_path / "other" / ".heads").glob("*.json"):  # both shards began at once
        shutil.copy(path, tmp_path / "out" / ".heads")
    with pytest.raises(ap.ConfigError, match="layer 0, head 0: was computed from another dump"):
        merge_shards([tmp_path / "out"])


def test_tables_of_another_run_are_not_replaced(tmp_path: Path) -> None:
    dump, other = (
        make_dump(tmp_path / str(rows), layers=1, q_heads=1, k_heads=1, n=rows) for rows in (60, 80)
    )
    shard(dump, tmp_path / "part", 0, 1)
    for name, source, seed, difference in (
        ("seed", dump, 9, r"seed \(9 then, 0 now\)"),
        ("dump", other, 0, "the dump"),
    ):
        target = tmp_path / name
        paths = run_analysis(config(source, target, seed=seed)).paths
        before = {path: path.read_bytes() for path in paths.all if path.exists()}
        with pytest.raises(ap.ConfigError, match=f"differs in {difference}.* or remove"):
            merge_shards([tmp_path / "part"], target)
        assert {path: path.read_bytes() for path in before} == before
    shard(other, tmp_path / "part-2", 0, 1)
    merge_shards([tmp_path / "part"], tmp_path / "merged")
    merge_shards([tmp_path / "part"], tmp_path / "merged")
    with pytest.raises(ap.ConfigError, match="differs in the dump"):
        merge_shards([tmp_path / "part-2"], tmp_path / "merged")


@pytest.mark.parametrize("count", [1, 2, 5, 12, 40])
def test_every_head_is_in_one_shard(dump: Path, count: int) -> None:
    plan = make_plan(open_dump(dump), ap.make_config())
    shares = [Shard(index, count).share(plan) for index in range(count)]
    heads = [
        (group.layer, q_head) for share in shares for group in share for q_head in group.q_heads
    ]
    assert sorted(heads) == plan.heads
    sizes = [sum(len(group.q_heads) for group in share) for share in shares]
    assert max(sizes) - min(sizes) <= 2


def test_a_failure_of_a_shard_is_in_the_merged_run(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=60)
    (dump / "l00h01q" / "data.parquet").write_text("spoilt")
    (failure,) = shard(dump, tmp_path / "out", 0, 1).failures
    assert merge_shards([tmp_path / "out"]).failures == [failure]
    write_head(dump, HeadId(0, 1, "q"), **head_rows(60))
    shard(dump, tmp_path / "out", 0, 1)
    assert merge_shards([tmp_path / "out"]).failures == []


def test_the_numbers_of_a_shard() -> None:
    slurm = {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in
             {"COUNT": 4, "ID": 7, "MIN": 1, "STEP": 2}.items()}  # fmt: skip
    settings = ap.make_config(engine="shards")
    assert shard_of(settings, slurm) == Shard(3, 4)
    assert shard_of(ap.make_config(engine="shards", num_shards=3, shard_index=1), slurm) == Shard(
        1, 3
    )
    for fields, environment, message in (
        ({}, {}, "needs num_shards and shard_index, or the variables of a Slurm array"),
        ({"num_shards": 2}, slurm, "shard_index: is missing"),
        ({"shard_index": 2}, slurm, "num_shards: is missing"),
        ({"num_shards": 2, "shard_index": 2}, {}, "shard_index: expected 0 to 1, got 2"),
    ):
        with pytest.raises(ap.ConfigError, match=message):
            shard_of(ap.make_config(engine="shards", **fields), environment)


def test_folders_that_are_in_use_or_not_of_shards_are_refused(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(ap.ConfigError, match="has no records of shards"):
        merge_shards([tmp_path])
    with pytest.raises(ap.ConfigError, match="cannot discard the work of other shards"):
        shard(dump, tmp_path / "out", 0, overwrite=True)
    shard(dump, tmp_path / "out", 0)
    lock = try_lock(tmp_path / "out" / ".lock-shard-001-of-003")
    assert lock is not None
    for action in (
        lambda: merge_shards([tmp_path / "out"]),
        lambda: run_analysis(config(dump, tmp_path / "out")),
    ):
        with pytest.raises(ap.ConfigError, match="a shard of a run is writing here"):
            action()
    with pytest.raises(ap.ConfigError, match="another run is writing here"):
        shard(dump, tmp_path / "out", 1)
    assert shard(dump, tmp_path / "out", 2).finished == 4  # shards do not disturb each other
    lock.release()
    assert len(run_analysis(config(dump, tmp_path / "out")).metrics) == 12
