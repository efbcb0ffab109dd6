"""The figure of drift draws the points of one head, with the numbers of the table of drift."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from attention_plasticity.cli import main
from attention_plasticity.metrics import POINTS
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
    return "" if text is None else str(text.get_text())


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes[:-1]]


def test_panels_have_the_points_of_the_head_before_and_after_rope(run: FinishedRun) -> None:
    figure = plot_run(run, "drift", {"layer": 1, "head": 0})
    rows = run.points.query("layer == 1 and q_head == 0")
    places = product((["pc0", "pc1"], ["pc0_rotated", "pc1_rotated"]), "qk")
    *panels, bar = figure.axes
    for axes, (names, kind) in zip(panels, places, strict=True):
        own = rows[rows["kind"] == kind]
        drawn = axes.collections[0]
        assert np.asarray(drawn.get_offsets()) == pytest.approx(own[names].to_numpy())
        colours = drawn.get_facecolor()[:, :3]  # type: ignore[index]
        position = own["position"].to_numpy()
        same = position == position.max()
        assert (colours[same] == colours[same][0]).all()
        assert not (colours[position == 0] == colours[same][0]).all()
    assert bar.get_xlabel() == "position (tokens)"
    assert bar.get_xlim() == (0.0, LAST)


def test_titles_labels_and_caption_have_the_numbers_of_their_frame(run: FinishedRun) -> None:
    figure = plot_run(run, "drift", {"layer": 1, "head": 0})
    row = run.drift.query("layer == 1 and q_head == 0").iloc[0]
    caption = caption_of(figure) or ""
    for place, (words, ending) in enumerate((("before", "_unrotated"), ("after", ""))):
        keys = figure.axes[2 * place + 1]
        share, r = row[f"k_pc1_share{ending}"], row[f"k_pc1_r{ending}"]
        assert keys.get_ylabel() == f"component 1\n{100 * share:.0f} %, |r| {r:.2f}"
        drift = f"{row[f'k_drift_r{ending}']:.2f} ± 0.01"
        assert titles(figure)[2 * place + 1] == f"keys {words} RoPE\nr of drift {drift}"
        queries = f"{row[f'q_drift_r{ending}']:.2f} ± 0.01"
        assert f"{words} RoPE queries {queries}, keys {drift}" in caption
    assert "drift most" not in note(figure)
    counts = f"{POINTS_OF_HEAD} queries and {POINTS_OF_HEAD} keys of layer 1, head 0"
    assert f"{counts} before and after RoPE" in caption
    assert "12 groups of texts" in caption


def test_a_small_interval_has_three_decimals(run: FinishedRun) -> None:
    drift = run.drift.assign(q_drift_r=0.98342, q_drift_r_se=0.001)
    figure = drift_figure(run.points, layer=0, head=0, drift=drift)
    assert titles(figure)[2].endswith("r of drift 0.983 ± 0.002")


def test_the_head_whose_queries_drift_most_is_the_default(run: FinishedRun) -> None:
    figure = plot_run(run, "drift", {})
    column = run.drift["q_drift_r_unrotated"]
    layer, head = run.drift.loc[column.idxmax(), ["layer", "q_head"]]
    assert f"layer {layer:.0f}, head {head:.0f}" in (caption_of(figure) or "")
    assert "the head whose queries drift most before RoPE" in note(figure)
    alone = drift_figure(run.points)
    assert "layer 0, head 0" in (caption_of(alone) or "")
    assert alone.axes[0].get_xlabel() == "component 0"
    assert titles(alone)[0] == "queries before RoPE"
    assert "drift most" not in note(alone)


@pytest.mark.parametrize("unknown", ["before", "after"])
def test_a_frame_that_is_not_known_is_left_out(run: FinishedRun, unknown: str) -> None:
    endings = {"before": ("", "_unrotated"), "after": ("_rotated", "")}
    ending, of_drift = endings.pop(unknown)
    ((known, (other, of_other)),) = endings.items()
    points = run.points.assign(**{f"pc{n}{ending}": np.nan for n in range(2)})
    names = [f"{kind}_drift_r{of_drift}" for kind in "qk"]
    figure = drift_figure(points, drift=run.drift.assign(**dict.fromkeys(names, np.nan)))
    assert len(figure.axes) == 3
    assert titles(figure)[0].startswith(f"queries {known} RoPE\n")
    most = run.drift.loc[run.drift[f"q_drift_r{of_other}"].idxmax()]
    own = points.query(f"layer == {most['layer']} and q_head == {most['q_head']} and kind == 'q'")
    offsets = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert offsets == pytest.approx(own[[f"pc0{other}", f"pc1{other}"]].to_numpy())
    assert f"coordinates {unknown} RoPE are not known" in note(figure)
    assert f"The coordinates {unknown} RoPE are not known." in (caption_of(figure) or "")
    assert f"the head whose queries drift most {known} RoPE" in note(figure)


def test_tables_of_earlier_versions_and_layers_without_rope_have_one_row(
    run: FinishedRun,
) -> None:
    earlier = drift_figure(run.points[[*POINTS.names[:7]]], layer=0, head=0)
    assert titles(earlier) == ["queries before RoPE", "keys before RoPE"]
    same = run.points.assign(pc0_rotated=run.points["pc0"], pc1_rotated=run.points["pc1"])
    figure = drift_figure(same, layer=0, head=0)
    assert titles(figure) == ["queries without RoPE", "keys without RoPE"]
    assert "not known" not in note(figure)
    nothing = run.points.assign(pc0=np.nan, pc0_rotated=np.nan)
    with pytest.raises(ConfigError, match="has no coordinates of layer 0, head 0"):
        drift_figure(nothing, layer=0, head=0)


def test_tokens_far_from_all_others_do_not_decide_the_range(run: FinishedRun) -> None:
    points = pd.concat([run.points] * 10, ignore_index=True)
    points.loc[0, "pc0"] = points.loc[[1, 2], "pc1_rotated"] = 1e4
    figure = drift_figure(points, layer=0, head=0)
    assert figure.axes[0].get_xlim()[1] < 10.0
    assert figure.axes[2].get_ylim()[1] < 10.0
    assert "3 points beyond the axes (1 before, 2 after RoPE)" in note(figure)
    figure = drift_figure(points[[*POINTS.names[:7]]], layer=0, head=0)
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
