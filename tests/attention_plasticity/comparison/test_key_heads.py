"""Means over key heads of compared runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy.stats import t

import attention_plasticity as ap
from key_head_runs import GROUPS, MEAN_ERROR, add_key_heads
from report_runs import write_run


def test_means_of_runs_that_have_the_table(tmp_path: Path) -> None:
    one = add_key_heads(write_run(tmp_path / "one"))
    other = write_run(tmp_path / "other")
    found = ap.compare([one, other], labels=["one", "other"], force=True)
    table = found.key_heads
    assert table["run"].tolist() == ["one"]
    rows = ap.open_run(one).table("key_heads")
    assert table["key_heads"][0] == len(rows)
    assert table["static_error"][0] == pytest.approx(rows["static_error"].mean())
    assert table["static_error_se"][0] == MEAN_ERROR
    assert "Means over key heads:" in found.to_markdown()
    half = t.ppf(0.975, GROUPS - 1) * MEAN_ERROR
    assert f"{rows['static_error'].mean():.3f} ± {half:.3f}" in found.to_markdown()
    assert "tab:key-heads" in found.to_latex()
    saved = {path.name for path in found.save(tmp_path / "out")}
    assert "key_heads.csv" in saved


def test_a_part_of_the_layers_has_no_error(tmp_path: Path) -> None:
    run = ap.open_run(add_key_heads(write_run(tmp_path / "one")))
    found = ap.compare([run.select(layers=[0]), run.select(layers=[1])], labels=["a", "b"])
    assert found.key_heads["static_error_se"].isna().all()
    assert found.key_heads["static_error"].diff()[1] == pytest.approx(0.01)


def test_runs_without_the_table(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("one", "other")]
    found = ap.compare(runs, labels=["a", "b"], force=True)
    assert found.key_heads.empty
    assert "key heads" not in found.to_markdown()
