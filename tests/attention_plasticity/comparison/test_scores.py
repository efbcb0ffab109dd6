"""Benchmark scores: when drops can be correlated with them, and how little few runs show."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy.stats import pearsonr

import attention_plasticity as ap
from attention_plasticity.cli import main
from attention_plasticity.comparison.scores import (
    Correlation,
    correlation_values,
    correlations,
    evidence,
    fisher_interval,
)
from attention_plasticity.metrics import ALIGNED_DROP
from run_tables import add_bins, aligned_metrics, metrics_table, write_run

CONTEXTS = "unequal contexts (a 100 tokens, b 768 tokens, c 768 tokens)"
REFUSAL = f"the drops are over {CONTEXTS}, so they cannot be correlated"
CAUTION = f"The correlation compares drops over different positions: {CONTEXTS}."


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Three runs with different drops; the context of the first is short."""
    found = [add_bins(write_run(tmp_path / name, model=f"owner/{name}")) for name in "abc"]
    for number, run in enumerate(found):
        table = aligned_metrics(metrics_table())
        table["q_position_max"] = 99 if number == 0 else 767
        table[ALIGNED_DROP] += 0.03 * number**2
        table.to_csv(run / "head_metrics.csv", index=False)
    return found


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    file = tmp_path / "scores.csv"
    file.write_text("model,ruler\na,1\nb,5\nc,3\n")
    return file


def note(figure: Figure) -> str:
    return str(figure.get_supxlabel())


def test_drops_over_unequal_contexts_are_refused(
    runs: list[Path], scores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *map(str, runs), "--scores", str(scores)]) == 2
    message = capsys.readouterr().err
    assert REFUSAL in message
    assert "tokenizer.max_length. --force shows them anyway" in message
    with pytest.raises(ap.ConfigError, match="force=True shows them anyway") as caught:
        ap.compare(runs, scores=scores)
    assert "--" not in str(caught.value)
    assert ap.compare(runs).correlations.empty
    assert len(ap.compare(runs[1:], scores=scores).correlations) == 1


def test_a_forced_correlation_has_its_cautions_everywhere(
    runs: list[Path], scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--scores", str(scores), "--force", "--output_dir", str(out)]
    assert main(["compare", *map(str, runs), *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    few = "3 runs; with fewer than 4 runs no interval exists, so no relation is shown."
    for text in (
        printed,
        (out / "correlations.csv").read_text(),
        (out / "notes.csv").read_text(),
        (out / "compare.md").read_text(),
        (out / "compare.tex").read_text(),
        (out / "scores.txt").read_text(),
    ):
        assert CAUTION in text
        assert REFUSAL not in text
        assert few in text
        assert "different contexts (100 to 768 tokens)" in text
    for name in ("compare.csv", "differences.csv", "profiles.txt"):
        assert "different contexts (100 to 768 tokens)" in (out / name).read_text()
    for form in ("csv", "markdown", "latex"):
        assert main(["compare", *map(str, runs), "--format", form, *words[:3]]) == 0
        told = capsys.readouterr()
        assert "different contexts" in told.out
        assert CAUTION in told.err
    comparison = ap.compare(runs, scores=scores, force=True)
    for kind in ("profiles", "trajectory", "scores"):
        assert "unequal contexts, 100 to 768 tokens" in note(comparison.plot(kind))
    assert "3 runs: no interval" in comparison.plot("scores").axes[0].get_title(loc="left")


def test_differences_over_unequal_contexts_are_marked(runs: list[Path]) -> None:
    comparison = ap.compare(runs)
    rows = comparison.differences.groupby("run")
    assert not rows["equal_contexts"].any().any()
    assert rows["cautions"].first().str.contains("different contexts").all()
    equal = ap.compare(runs[1:]).differences
    assert equal["equal_contexts"].all()
    assert not equal["cautions"].str.contains("different contexts").any()


def test_intervals_are_those_of_fisher() -> None:
    drop, score = np.random.default_rng(0).normal(size=(2, 9))
    table = pd.DataFrame({"model": [str(number) for number in range(9)], "s": score})
    (found,) = correlations(pd.DataFrame({ALIGNED_DROP: drop}), table)
    expected = pearsonr(drop, score).confidence_interval()
    assert (found.pearson_low, found.pearson_high) == pytest.approx(tuple(expected))
    wider = np.tanh(
        np.arctanh(found.spearman)
        + np.array([-1, 1]) * 1.959964 * np.sqrt((1 + found.spearman**2 / 2) / 6)
    )
    assert (found.spearman_low, found.spearman_high) == pytest.approx(tuple(wider))
    assert all(math.isnan(end) for end in (*fisher_interval(0.5, 3), *fisher_interval(1.0, 9)))


def test_the_reason_for_no_correlation_is_named(runs: list[Path]) -> None:
    numbers = {"ruler": [1, 5, 3], "equal": [0.1 + 0.2, 0.3, 0.3], "two": [1, None, 2]}
    scores = pd.DataFrame({"model": list("abc"), **numbers, 7: [1, 2, 3]})
    comparison = ap.compare(runs, scores=scores, force=True)
    figure = comparison.plot("scores")
    titles = [axes.get_title(loc="left") for axes in figure.axes[1:3]]
    assert titles == ["equal scores: no correlation", "2 runs, too few: no correlation"]
    assert "drop against equal: no correlation (equal scores)." in comparison.caption("scores")
    assert list(comparison.correlations["score"]) == ["ruler", "equal", "two", "7"]
    assert "obstacle" not in comparison.correlations
    same = [runs[1], runs[1], runs[1]]
    drops = ap.compare(same, list("abc"), scores[["model", "ruler"]]).plot("scores")
    assert drops.axes[0].get_title(loc="left") == "equal drops: no correlation"
    for axes in figure.axes[:4]:
        low, high = axes.get_ylim()
        assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 3


@pytest.mark.parametrize(
    ("runs", "pearson", "told"),
    [
        (2, math.nan, None),
        (3, 0.9, "3 runs; with fewer than 4 runs no interval exists"),
        (4, 1.0, "only 4 runs; a correlation of exactly 1 has no interval"),
        (5, 0.7, "-0.48 to 0.98 and includes 0, so no relation is shown"),
        (9, -0.9, "-0.98 to -0.59, so its size is uncertain"),
        (10, 0.9, None),
    ],
)
def test_what_few_runs_show(runs: int, pearson: float, told: str | None) -> None:
    ends = fisher_interval(pearson, runs) if runs > 2 else (math.nan, math.nan)
    found = evidence(Correlation("s", runs, pearson, pearson, *ends, *ends))
    assert found is None if told is None else told in str(found)


def test_zero_has_no_sign() -> None:
    found = Correlation("s", 5, -0.001, -0.2, -0.9, 0.9, -0.004, 0.5)
    assert correlation_values(found) == ("0.00 [-0.90, 0.90]", "-0.20 [0.00, 0.50]")
