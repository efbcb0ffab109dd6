"""The figure of drift draws the points of one head, with the numbers of the table of drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from attention_plasticity.cli import main
from attention_plasticity.plots import caption_of, drift_figure
from attention_plasticity.plots.drawing import plot_run
from attention_plasticity.tables.finished_run import FinishedRun
from drift_runs import LAST, POINTS_OF_HEAD, add_drift
from qk_toolkit.errors import ConfigError
from report_runs import write_run


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return FinishedRun.open(add_drift(write_run(tmp_path / "run")))


def note(figure: Figure) -> str:
    text: Any = figure._supxlabel  # type: ignore[attr-defined]
    return str(text.get_text())


def test_both_panels_have_the_points_of_the_head(run: FinishedRun) -> None:
    figure = plot_run(run, "drift", {"layer": 1, "head": 0})
    rows = run.points.query("layer == 1 and q_head == 0")
    for axes, kind in zip(figure.axes, "qk", strict=False):
        own = rows[rows["kind"] == kind]
        drawn = axes.collections[0]
        assert np.asarray(drawn.get_offsets()) == pytest.approx(own[["pc0", "pc1"]].to_numpy())
        colours = drawn.get_facecolor()[:, :3]  # type: ignore[index]
        position = own["position"].to_numpy()
        same = position == position.max()
        assert (colours[same] == colours[same][0]).all()
        assert not (colours[position == 0] == colours[same][0]).all()
    bar = figure.axes[2]
    assert bar.get_xlabel() == "position (tokens)"
    assert bar.get_xlim() == (0.0, LAST)


def test_labels_footnote_and_caption_have_the_numbers_before_rope(run: FinishedRun) -> None:
    figure = plot_run(run, "drift", {"layer": 1, "head": 0})
    row = run.drift.query("layer == 1 and q_head == 0").iloc[0]
    share, r = row["k_pc1_share_unrotated"], row["k_pc1_r_unrotated"]
    assert figure.axes[1].get_ylabel() == f"component 1\n{100 * share:.0f} %, |r| {r:.2f}"
    queries = f"queries {row['q_drift_r_unrotated']:.2f} ± 0.01"
    assert queries in note(figure)
    assert "drift most" not in note(figure)
    caption = caption_of(figure) or ""
    assert f"{POINTS_OF_HEAD} queries and {POINTS_OF_HEAD} keys of layer 1, head 0" in caption
    assert queries in caption
    assert "12 groups of texts" in caption


def test_the_head_whose_queries_drift_most_is_the_default(run: FinishedRun) -> None:
    figure = plot_run(run, "drift", {})
    column = run.drift["q_drift_r_unrotated"]
    layer, head = run.drift.loc[column.idxmax(), ["layer", "q_head"]]
    assert f"layer {layer:.0f}, head {head:.0f}" in (caption_of(figure) or "")
    assert "the head whose queries drift most" in note(figure)
    alone = drift_figure(run.points)
    assert "layer 0, head 0" in (caption_of(alone) or "")
    assert alone.axes[0].get_xlabel() == "component 0"
    assert "drift most" not in note(alone)


def test_tokens_far_from_all_others_do_not_decide_the_range(run: FinishedRun) -> None:
    points = pd.concat([run.points] * 10, ignore_index=True)
    points.loc[0, "pc0"] = 1e4
    figure = drift_figure(points, layer=0, head=0)
    assert figure.axes[0].get_xlim()[1] < 10.0
    assert "1 point beyond the axes" in note(figure)


def test_what_cannot_be_drawn_is_refused(run: FinishedRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no rows of layer 99, head 0"):
        plot_run(run, "drift", {"layer": 99, "head": 0})
    with pytest.raises(ConfigError, match="give layer and head together"):
        drift_figure(run.points, head=0)
    without = FinishedRun.open(add_drift(write_run(tmp_path / "without"), points=False))
    with pytest.raises(ConfigError, match="analyze with points_per_head"):
        plot_run(without, "drift", {})


def test_a_table_without_its_run(run: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "drift.png"
    table = run.path("points")
    assert main(["plot", "drift", "--point_csv", str(table), "--output", str(out)]) == 0
    assert out.stat().st_size > 1000
