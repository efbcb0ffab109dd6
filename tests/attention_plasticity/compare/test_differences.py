"""Differences between runs: text by text where the texts are the same."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.columns import GROUP_COLUMNS, MEAN_COLUMNS
from attention_plasticity.compare.differences import pairing_notes, run_differences, same_texts
from attention_plasticity.tables.intervals import half_width
from dumps import make_dump
from qk_dump.examples import Example, write_examples

TEXTS = 12


def run_of(
    folder: Path, names: str | None = "text", seed: int = 0, example_ids: bool = True
) -> ap.Run:
    """A run on simulated texts; `names` are the first part of their original ids."""
    dump = make_dump(folder / "dump", layers=1, q_heads=2, k_heads=1, examples=TEXTS, n=1500)
    if names is not None:
        write_examples(
            dump,
            [Example(number, f"{names}-{number}", 1024, "") for number in range(TEXTS)],
        )
    return ap.analyze_dump(
        dump, output_dir=str(folder / "run"), seed=seed, single_example=not example_ids
    )


def mean_influences(run: ap.Run, name: str) -> np.ndarray:
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == name]
    return rows[list(GROUP_COLUMNS)].to_numpy().mean(axis=0)


def test_runs_on_the_same_texts_are_compared_text_by_text(tmp_path: Path) -> None:
    one, other = run_of(tmp_path / "a"), run_of(tmp_path / "b", seed=1)
    assert same_texts(one, other)
    assert pairing_notes([one, other], ["a", "b"]) == []
    table = run_differences([one, other], ["a", "b"]).set_index("quantity")
    assert list(table.index) == list(MEAN_COLUMNS)
    for name in ("ap_overall", "ap_drop"):
        row = table.loc[name]
        means = [
            (run.head_metrics[name] - run.head_metrics[f"{name}_bias"]).mean()
            for run in (one, other)
        ]
        groups = mean_influences(other, name) - mean_influences(one, name)
        assert row["difference"] == pytest.approx(means[1] - means[0])
        assert row["standard_error"] == pytest.approx(np.linalg.norm(groups))
        reach = half_width(row["standard_error"], TEXTS)
        assert (row["low"], row["high"]) == pytest.approx(
            (row["difference"] - reach, row["difference"] + reach)
        )
        assert row["paired"]


def test_the_same_run_has_no_difference_and_no_error(tmp_path: Path) -> None:
    one = run_of(tmp_path / "a")
    table = run_differences([one, one], ["a", "again"])
    assert table["difference"].abs().max() == table["standard_error"].max() == 0.0


@pytest.mark.parametrize(
    ("names", "reason"),
    [("another", "the texts differ"), (None, "the original ids of the texts are not known in b")],
)
def test_other_texts_are_independent_samples(
    names: str | None, reason: str, tmp_path: Path
) -> None:
    one, other = run_of(tmp_path / "a"), run_of(tmp_path / "b", names, seed=1)
    assert not same_texts(one, other)
    (note,) = pairing_notes([one, other], ["a", "b"])
    assert reason in note
    row = run_differences([one, other], ["a", "b"]).set_index("quantity").loc["ap_overall"]
    errors = [np.linalg.norm(mean_influences(run, "ap_overall")) for run in (one, other)]
    assert row["standard_error"] == pytest.approx(math.hypot(*errors))
    assert not row["paired"]


def test_the_command_prints_and_writes_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        run_of(tmp_path / name, seed=seed)
    words = [str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), "--labels", "a,b"]
    assert main(["compare", *words, "--output_dir", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "b minus a: plasticity" in text
    assert "(text by text)" in text
    assert "±" in text
    assert (tmp_path / "out" / "differences.csv").read_text().count("\n") == 1 + len(MEAN_COLUMNS)


def test_runs_without_errors_are_compared_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        run_of(tmp_path / name, seed=seed, example_ids=False)
    words = [str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), "--labels", "a,b"]
    assert main(["compare", *words]) == 0
    text = capsys.readouterr().out
    assert "minus" not in text
    assert "±" not in text
