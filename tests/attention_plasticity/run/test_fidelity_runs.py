"""Fidelity as a table of a run: `fidelity` adds it, and later commands keep it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

import attention_plasticity as ap
from attention_plasticity.metrics import FIDELITY
from fidelity_dumps import make_fidelity_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from runs_here import Here, analyse, compared_info, records, run_info, tables

NAME = FIDELITY.file
KEY_HEADS = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    return make_fidelity_dump(folder, layers=2, k_heads=2, group=2, texts=4, length=32)


@pytest.fixture(scope="module")
def whole(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    analyse(dump, out, fidelity=True, near=4)
    return out


def test_the_table_and_run_json(whole: Path) -> None:
    table = pd.read_csv(whole / NAME)
    assert tuple(table.columns) == FIDELITY.names
    heads = table[["layer", "k_head"]].drop_duplicates().to_numpy().tolist()
    assert heads == [list(head) for head in KEY_HEADS]
    assert (table["n_q_heads"] == 2).all()
    found = run_info(whole)["fidelity"]
    assert (found["near"], found["first_query"]) == (4, 8)
    assert (found["key_heads"], found["failures"]) == ({"measured": 4, "failed": 0}, [])
    for mean in found["means"]:
        own = table[(table["score"] == mean["score"]) & (table["value_norm"] == mean["value_norm"])]
        assert mean["kept_25"]["value"] == pytest.approx(own["kept_25"].mean())
        assert mean["kept_25"]["heads"] == 4
    assert ap.open_run(whole).has("fidelity")


def test_later_commands_keep_it_and_compute_nothing(
    dump: Path, whole: Path, tmp_path: Path
) -> None:
    out, engine = Path(shutil.copytree(whole, tmp_path / "out")), Here()
    before = (out / "run.json").read_bytes()
    analyse(dump, out, engine=engine, near=4)
    analyse(dump, out, engine=engine, near=4, fidelity=True)
    assert (engine.heads, engine.key_heads) == ([], [])
    assert (out / "run.json").read_bytes() == before


def test_it_can_be_added_later_and_in_shares(dump: Path, whole: Path, tmp_path: Path) -> None:
    """A key head is measured with all its query heads, whichever are chosen."""
    engine = Here()
    plain = analyse(dump, tmp_path, engine=engine)
    assert plain.info["fidelity"] is None
    assert not (tmp_path / NAME).exists()
    without = {name: text for name, text in tables(whole).items() if name != NAME}
    assert tables(tmp_path) == without
    analyse(dump, tmp_path, engine=engine, fidelity=True, near=4, layers=[1], heads=[0])
    assert engine.key_heads == [(1, 0)]
    assert run_info(tmp_path)["fidelity"]["key_heads"] == {"measured": 1, "failed": 0}
    analyse(dump, tmp_path, engine=engine, fidelity=True, near=4)
    assert sorted(engine.key_heads) == KEY_HEADS
    assert len(engine.heads) == 8
    assert tables(tmp_path) == tables(whole)
    assert compared_info(tmp_path) == compared_info(whole)


def test_other_settings_of_fidelity_give_other_values(
    dump: Path, whole: Path, tmp_path: Path
) -> None:
    out, engine = Path(shutil.copytree(whole, tmp_path / "out")), Here()
    analyse(dump, out, engine=engine, fidelity=True, near=2)
    assert (engine.heads, sorted(engine.key_heads)) == ([], KEY_HEADS)
    changed = {name for name, text in tables(out).items() if text != tables(whole)[name]}
    assert changed == {NAME}
    found = run_info(out)["fidelity"]
    assert found["near"] == 2
    assert len(records(out, "k")) == 8
    analyse(dump, out, engine=engine, near=4)  # the former values are still there
    assert len(engine.key_heads) == 4
    assert tables(out) == tables(whole)


def test_changed_queries_of_one_head_change_its_key_head_only(
    dump: Path, whole: Path, tmp_path: Path
) -> None:
    copy, out = Path(shutil.copytree(dump, tmp_path / "dump")), tmp_path / "out"
    shutil.copytree(whole, out)
    other = make_fidelity_dump(tmp_path / "other", layers=2, texts=4, length=32, seed=1)
    shutil.copy(other / "l01h03q" / "data.parquet", copy / "l01h03q")
    engine = Here()
    analyse(copy, out, engine=engine, fidelity=True, near=4)
    assert (engine.heads, engine.key_heads) == ([(1, 3)], [(1, 1)])


@pytest.mark.parametrize(
    ("attention", "near", "reason"),
    [(True, 500, "lower near or first_query"), (False, 2, "the queries have no attention columns")],
)
def test_a_key_head_that_cannot_be_measured_has_a_reason(
    attention: bool, near: int, reason: str, tmp_path: Path
) -> None:
    dump = make_fidelity_dump(tmp_path / "dump", k_heads=1, texts=3, length=24, attention=attention)
    outcome = analyse(dump, tmp_path / "out", fidelity=True, near=near)
    assert outcome.failures == []
    assert outcome.has_failures
    [failure] = outcome.info["fidelity"]["failures"]
    assert (failure["layer"], failure["k_head"]) == (0, 0)
    assert reason in failure["reason"]
    assert not (tmp_path / "out" / NAME).exists()
    if attention:
        assert not analyse(dump, tmp_path / "out", fidelity=True, near=2).has_failures
