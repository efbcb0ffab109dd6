"""Means by relative depth, against plain sums over the rows of the CSV files."""

from __future__ import annotations

import math
from itertools import chain

import pandas as pd
import pytest

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.depth import depth_table, layers_of_part
from attention_plasticity.family.depth_figure import depth_figure
from attention_plasticity.plots.captions import caption_of
from family_models import small_models


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ComparedRun]:
    return small_models(tmp_path_factory.mktemp("depth"), 3)


def test_every_layer_is_in_one_part() -> None:
    assert layers_of_part(0, 10, 30) == [0, 1, 2]
    assert [layers_of_part(part, 2, 5) for part in (0, 1)] == [[0, 1], [2, 3, 4]]
    assert [layers_of_part(part, 10, 5) for part in range(10)] == [
        *([0], [0], [1], [1], [2], [2], [3], [3], [4], [4]),
    ]
    for layers in range(10, 80):
        parts = [layers_of_part(part, 10, layers) for part in range(10)]
        assert list(chain(*parts)) == list(range(layers))
        assert all(parts)


def test_values_and_errors_are_those_of_plain_sums(runs: list[ComparedRun]) -> None:
    table = depth_table(runs, ["ap_aligned", "ap_phase"], parts=2)
    for run in runs:
        heads = pd.read_csv(run.run.folder / "head_metrics.csv")
        influences = pd.read_csv(run.run.folder / "head_influences.csv")
        for metric in ("ap_aligned", "ap_phase"):
            own = heads[heads["layer"] <= 1]
            value = sum(own[metric]) / len(own)
            rows = influences[(influences["quantity"] == metric) & (influences["layer"] <= 1)]
            shares = [sum(rows[f"group_{group:02d}"]) / len(rows) for group in range(16)]
            chosen = (table["run"] == run.label) & (table["metric"] == metric)
            row = table[chosen & (table["part"] == 1)].iloc[0]
            assert row["mean"] == pytest.approx(value, abs=1e-12)
            error = math.sqrt(sum(share * share for share in shares))
            assert row["standard_error"] == pytest.approx(error, abs=1e-12)
            assert (row["heads"], row["layers"]) == (12, "0-1")
            assert row["low"] < row["mean"] < row["high"]


def test_a_metric_that_no_run_has_is_left_out(runs: list[ComparedRun]) -> None:
    assert set(depth_table(runs, ["ap_aligned", "no_such_metric"])["metric"]) == {"ap_aligned"}


@pytest.mark.parametrize("width", [3.3, 7.0])
def test_the_map_has_a_row_per_model(runs: list[ComparedRun], width: float) -> None:
    table = depth_table(runs, ["ap_aligned", "ap_phase"])
    figure = depth_figure(table, runs, width=width)
    maps = [axes for axes in figure.axes if axes.get_xlabel()]
    assert [axes.get_title(loc="left") for axes in maps] == [
        "plasticity at one position",
        "rotary phase",
    ]
    for axes, metric in zip(maps, ("ap_aligned", "ap_phase"), strict=True):
        assert [label.get_text() for label in axes.get_yticklabels()] == ["m0", "m1", "m2"]
        drawn = axes.images[0].get_array()
        rows = table[(table["metric"] == metric) & (table["run"] == "m1")]
        assert drawn[1].tolist() == rows["mean"].tolist()
    caption = caption_of(figure)
    assert caption is not None
    assert "10 equal parts" in caption
