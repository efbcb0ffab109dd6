"""Differences between runs: text by text where the texts are the same."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.columns import GROUP_COLUMNS, MEAN_COLUMNS
from attention_plasticity.comparison.cautions import pairing_cautions, same_texts
from attention_plasticity.comparison.differences import run_differences
from attention_plasticity.comparison.runs import labelled
from attention_plasticity.tables.intervals import half_width
from dumps import make_dump
from qk_dump.examples import Example, write_examples

TEXTS = 12


class Runs:
    """Runs on simulated texts, each analysed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: dict[tuple[str | None, int, bool], ap.Run] = {}

    def __call__(
        self, names: str | None = "text", seed: int = 0, example_ids: bool = True
    ) -> ap.Run:
        """A run; `names` are the first part of the original ids of its texts."""
        key = (names, seed, example_ids)
        if key not in self.made:
            self.made[key] = self._make(self.root / str(len(self.made)), *key)
        return self.made[key]

    def _make(self, folder: Path, names: str | None, seed: int, example_ids: bool) -> ap.Run:
        dump = make_dump(folder / "dump", layers=1, q_heads=2, k_heads=1, examples=TEXTS, n=1500)
        if names is not None:
            ids = [f"{names}-{number}" for number in range(TEXTS)]
            write_examples(dump, [Example(n, text, 1024, "") for n, text in enumerate(ids)])
        settings = {"seed": seed, "single_example": not example_ids, "max_workers": 1}
        return ap.analyze_dump(dump, settings, output_dir=str(folder / "run"))


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def mean_influences(run: ap.Run, name: str) -> np.ndarray:
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == name]
    return rows[list(GROUP_COLUMNS)].to_numpy().mean(axis=0)


def test_runs_on_the_same_texts_are_compared_text_by_text(run_of: Runs) -> None:
    one, other = run_of(), run_of(seed=1)
    runs = labelled([one, other], ["a", "b"])
    assert same_texts(*runs)
    assert pairing_cautions(runs) == []
    table = run_differences(runs).set_index("quantity")
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


def test_the_same_run_has_no_difference_and_no_error(run_of: Runs) -> None:
    one = run_of()
    table = run_differences(labelled([one, one], ["a", "again"]))
    assert table["difference"].abs().max() == table["standard_error"].max() == 0.0


@pytest.mark.parametrize(
    ("names", "reason"),
    [("another", "the texts differ"), (None, "the original ids of the texts are not known in b")],
)
def test_other_texts_are_independent_samples(names: str | None, reason: str, run_of: Runs) -> None:
    one, other = run_of(), run_of(names, seed=1)
    runs = labelled([one, other], ["a", "b"])
    assert not same_texts(*runs)
    (note,) = pairing_cautions(runs)
    assert reason in note.text
    row = run_differences(runs).set_index("quantity").loc["ap_overall"]
    errors = [np.linalg.norm(mean_influences(run, "ap_overall")) for run in (one, other)]
    assert row["standard_error"] == pytest.approx(math.hypot(*errors))
    assert not row["paired"]


def test_the_command_prints_and_writes_differences(
    run_of: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run_of(seed=seed).folder) for seed in (0, 1)] + ["--labels", "a,b"]
    assert main(["compare", *words, "--output_dir", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "Minus a" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("b ")][1] == "same"
    assert "±" in text
    assert (tmp_path / "out" / "differences.csv").read_text().count("\n") == 1 + len(MEAN_COLUMNS)


def test_runs_without_errors_are_compared_without_them(
    run_of: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run_of(seed=seed, example_ids=False).folder) for seed in (0, 1)]
    words += ["--labels", "a,b"]
    assert main(["compare", *words]) == 0
    text = capsys.readouterr().out
    assert "Minus" not in text
    assert "±" not in text
