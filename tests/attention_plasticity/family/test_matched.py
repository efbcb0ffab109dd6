"""Differences of the same heads, against plain sums over the rows of the CSV files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from attention_plasticity.comparison.runs import ComparedRun, labelled
from attention_plasticity.family.matched import (
    Pair,
    can_match,
    matched_heads,
    matched_summary,
)
from attention_plasticity.family.matched_figure import matched_figure
from attention_plasticity.plots.captions import caption_of
from attention_plasticity.tables.finished_run import FinishedRun
from family_models import small_models
from qk_toolkit.errors import ConfigError

METRIC = "ap_aligned"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedRun]:
    """Two models on the same texts, a third on others."""
    folder = tmp_path_factory.mktemp("matched")
    names = [run.label for run in small_models(folder, 3)]
    for name, digest in zip(names, ("same", "same", "other"), strict=True):
        _change(folder / name, digest)
    return labelled([FinishedRun.open(folder / name) for name in names], names)


def _change(folder: Path, digest: str) -> None:
    info = json.loads((folder / "run.json").read_text())
    info["input"]["texts"] = {"count": 12, "digest": digest}
    (folder / "run.json").write_text(json.dumps(info))


def influences(run: ComparedRun, layer: int, head: int) -> list[float]:
    rows = pd.read_csv(run.run.folder / "head_influences.csv")
    chosen = (rows["quantity"] == METRIC) & (rows["layer"] == layer) & (rows["q_head"] == head)
    [row] = rows[chosen].to_dict("records")
    return [row[f"group_{group:02d}"] for group in range(16)]


@pytest.mark.parametrize(("other", "paired"), [(1, True), (2, False)])
def test_differences_and_errors_are_those_of_plain_sums(
    runs: list[ComparedRun], other: int, paired: bool
) -> None:
    table = matched_heads([Pair(runs[other], runs[0])], [METRIC])
    assert len(table) == 29
    assert set(table["paired"]) == {paired}
    files = [pd.read_csv(run.run.folder / "head_metrics.csv") for run in (runs[other], runs[0])]
    for layer, head in ((0, 2), (3, 5)):
        row = table[(table["layer"] == layer) & (table["q_head"] == head)].iloc[0]
        values = []
        for heads in files:
            [own] = heads[(heads["layer"] == layer) & (heads["q_head"] == head)].to_dict("records")
            values.append(own[METRIC])
        assert row["difference"] == pytest.approx(values[0] - values[1], abs=1e-12)
        first, second = (influences(run, layer, head) for run in (runs[other], runs[0]))
        if paired:
            squares = sum((a - b) ** 2 for a, b in zip(first, second, strict=True))
        else:
            squares = sum(a * a + b * b for a, b in zip(first, second, strict=True))
        error = math.sqrt(squares)
        assert row["standard_error"] == pytest.approx(error, abs=1e-12)
        p_value = 2 * stats.t.sf(abs(values[0] - values[1]) / error, 11)
        assert row["p_value"] == pytest.approx(p_value, rel=1e-9)
        low, high = stats.t.interval(0.95, 11, values[0] - values[1], error)
        assert (row["low"], row["high"]) == pytest.approx((low, high))


def test_heads_that_changed_are_counted_with_scipys_correction(runs: list[ComparedRun]) -> None:
    table = matched_heads([Pair(runs[1], runs[0])], [METRIC, "ap_phase"])
    summary = matched_summary(table).set_index("metric")
    for metric in (METRIC, "ap_phase"):
        own = table[table["metric"] == metric]
        significant = stats.false_discovery_control(own["p_value"]) <= 0.05
        assert own["changed"].tolist() == significant.tolist()
        row = summary.loc[metric]
        assert (row["heads"], row["tested"], row["changed"]) == (29, 29, significant.sum())
        assert row["risen"] == (own["difference"][significant] > 0).sum()
        assert row["risen"] + row["fallen"] == row["changed"]
    assert 0 < summary.loc[METRIC, "changed"] < 29


def test_a_model_does_not_differ_from_itself(runs: list[ComparedRun]) -> None:
    table = matched_heads([Pair(runs[0], runs[0])], [METRIC])
    assert (table["difference"] == 0).all()
    assert not table["changed"].any()


def test_other_architectures_cannot_be_matched(runs: list[ComparedRun], tmp_path: Path) -> None:
    assert can_match(runs[0], runs[1])
    [other] = small_models(tmp_path, 1)
    info = json.loads((other.run.folder / "run.json").read_text())
    info["head_layout"]["num_layers"] = 6
    (other.run.folder / "run.json").write_text(json.dumps(info))
    [changed] = labelled([FinishedRun.open(other.run.folder)], ["other"])
    assert not can_match(runs[0], changed)
    with pytest.raises(ConfigError, match="no two models"):
        matched_figure(matched_heads([], [METRIC]), [], METRIC)


@pytest.mark.parametrize("width", [3.3, 7.0])
def test_the_map_marks_heads_that_changed(runs: list[ComparedRun], width: float) -> None:
    pairs = [Pair(runs[1], runs[0]), Pair(runs[2], runs[0])]
    table = matched_heads(pairs, [METRIC])
    figure = matched_figure(table, pairs, METRIC, width=width)
    for axes, pair in zip(figure.axes, pairs, strict=False):
        own = table[table["run"] == pair.run.label]
        changed = own[own["changed"]]
        assert (
            axes.lines[0].get_xydata().tolist() == changed[["q_head", "layer"]].to_numpy().tolist()
        )
        assert axes.get_title(loc="left").splitlines()[0] == pair.name
    caption = caption_of(figure)
    assert caption is not None
    assert "compared text by text: m1 minus m0." in caption
    assert "independent samples: m2 minus m0." in caption
