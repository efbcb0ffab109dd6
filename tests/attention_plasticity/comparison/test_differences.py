"""Differences between runs: text by text where the texts are the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attention_plasticity as ap
from analysed import analyse_together
from attention_plasticity.cli import main
from attention_plasticity.comparison.cautions import pairing_cautions, same_texts
from attention_plasticity.comparison.data import run_differences
from attention_plasticity.comparison.runs import COMPARED, labelled
from attention_plasticity.comparison.tables import differences_table
from attention_plasticity.metrics import ALIGNED, ALIGNED_DROP, GROUP_COLUMNS
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.examples import Example, write_examples

TEXTS = 12


RUNS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "one": ("text", {"seed": 0}),
    "other seed": ("text", {"seed": 1}),
    "other texts": ("another", {"seed": 1}),
    "unknown texts": (None, {"seed": 1}),
    "without errors": ("text", {"seed": 0, "single_example": True}),
    "without errors, other seed": ("text", {"seed": 1, "single_example": True}),
}
"""Runs on simulated texts: the first part of the original ids of the texts, and settings."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ap.Run]:
    root = tmp_path_factory.mktemp("runs")
    dumps = {names: root / "dumps" / str(names) for names, _ in RUNS.values()}
    for names, dump in dumps.items():
        add_rotary(make_dump(dump, layers=1, q_heads=2, k_heads=1, examples=TEXTS, n=1500))
        if names is not None:
            ids = [f"{names}-{number}" for number in range(TEXTS)]
            write_examples(dump, [Example(n, text, 1024, "") for n, text in enumerate(ids)])
    analyse_together(
        {root / run: (dumps[names], settings) for run, (names, settings) in RUNS.items()}
    )
    return {run: ap.open_run(root / run) for run in RUNS}


def mean_influences(run: ap.Run, name: str) -> np.ndarray:
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == name]
    return rows[list(GROUP_COLUMNS)].to_numpy().mean(axis=0)


def test_runs_on_the_same_texts_are_compared_text_by_text(runs: dict[str, ap.Run]) -> None:
    one, other = runs["one"], runs["other seed"]
    both = labelled([one, other], ["a", "b"])
    assert same_texts(*both)
    assert pairing_cautions(both) == []
    table = run_differences(both).set_index("quantity")
    assert list(table.index) == list(COMPARED)
    for name in (ALIGNED, ALIGNED_DROP):
        row = table.loc[name]
        means = [run.head_metrics[name].mean() for run in (one, other)]
        groups = mean_influences(other, name) - mean_influences(one, name)
        assert row["difference"] == pytest.approx(means[1] - means[0])
        assert row["standard_error"] == pytest.approx(np.linalg.norm(groups))
        reach = half_width(row["standard_error"], TEXTS)
        assert (row["low"], row["high"]) == pytest.approx(
            (row["difference"] - reach, row["difference"] + reach)
        )
        assert row["paired"]


def test_the_same_run_has_no_difference_and_no_error(runs: dict[str, ap.Run]) -> None:
    one = runs["one"]
    table = run_differences(labelled([one, one], ["a", "again"]))
    assert table["difference"].abs().max() == table["standard_error"].max() == 0.0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("other texts", "the texts differ"),
        ("unknown texts", "the original ids of the texts are not known in b"),
    ],
)
def test_other_texts_are_independent_samples(
    name: str, reason: str, runs: dict[str, ap.Run]
) -> None:
    one, other = runs["one"], runs[name]
    both = labelled([one, other], ["a", "b"])
    assert not same_texts(*both)
    (note,) = pairing_cautions(both)
    assert reason in note.text
    row = run_differences(both).set_index("quantity").loc[ALIGNED]
    errors = [np.linalg.norm(mean_influences(run, ALIGNED)) for run in (one, other)]
    assert row["standard_error"] == pytest.approx(math.hypot(*errors))
    assert not row["paired"]


def test_the_command_prints_and_writes_differences(
    runs: dict[str, ap.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(runs[name].folder) for name in ("one", "other seed")] + ["--labels", "a,b"]
    assert main(["compare", *words, "--output_dir", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "Plasticity at one position, minus a" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("b ")][1] == "same"
    assert "±" in text
    assert (tmp_path / "out" / "differences.csv").read_text().count("\n") == 1 + len(COMPARED)


def test_runs_without_errors_are_compared_without_them(
    runs: dict[str, ap.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("without errors", "without errors, other seed")
    words = [str(runs[name].folder) for name in names] + ["--labels", "a,b"]
    assert main(["compare", *words]) == 0
    text = capsys.readouterr().out
    assert "minus" not in text
    assert "±" not in text


def test_a_difference_that_is_not_known_has_no_marks(runs: dict[str, ap.Run]) -> None:
    """One run has no drop, so it has no mean that could go over other heads or positions."""
    table = run_differences(labelled([runs["one"], runs["other seed"]], ["a", "b"]))
    unknown = table["quantity"] == ALIGNED_DROP
    table.loc[unknown, ["difference", "standard_error", "low", "high"]] = math.nan
    table.loc[unknown, ["same_heads", "equal_contexts"]] = False
    written = differences_table(table, AT_ONE_POSITION)
    assert written is not None
    (line,) = written.lines
    assert line.cells[1].whole == "–"
    assert "[" in line.cells[0].whole
    assert written.note.endswith("are independent samples.")
