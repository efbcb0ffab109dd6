"""Types of layers, and the choice of some layers, in figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PatchCollection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attention_plasticity import ConfigError, open_run
from attention_plasticity.cli import main
from attention_plasticity.plots import heatmap_figure, map_figure
from attention_plasticity.plots.captions import caption_of
from attention_plasticity.plots.drawing import draw
from attention_plasticity.plots.settings import ComponentsPlot, HeatmapPlot, MapPlot
from run_tables import add_windows, aligned_metrics, cells_table, metrics_table, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return add_windows(write_run(tmp_path / "run"))


def note(figure: Figure) -> str:
    return " ".join(figure._supxlabel.get_text().split())  # type: ignore[attr-defined]


def meshes(figure: Figure) -> list[np.ndarray]:
    """(key buckets, query buckets) of every panel."""
    found = [one for axes in figure.axes[:-1] for one in axes.collections]
    return [np.ma.filled(one.get_array(), np.nan) for one in found if isinstance(one, QuadMesh)]


def test_the_heatmap_has_a_panel_per_type_of_layer(run: Path) -> None:
    figure = draw(HeatmapPlot(run=str(run)))
    titles = [axes.get_title(loc="left") for axes in figure.axes[:2]]
    assert titles == ["sliding window\n8 heads", "full attention\n4 heads"]
    cells = open_run(run).bucket_plasticity
    for drawn, full in zip(meshes(figure), (False, True), strict=True):
        part = cells[(cells["layer"] == 1) == full]
        cell = part[(part["q_bucket"] == 5) & (part["k_bucket"] == 4)]["plasticity"]
        assert drawn[4, 5] == pytest.approx(cell.mean())
        assert np.isnan(drawn[0, 5]) == (not full)  # outside the window
    bar = figure.axes[-1]
    assert bar.get_ylabel().endswith("(range of the data)")
    means = np.concatenate([np.ravel(one) for one in meshes(figure)])
    assert bar.get_ylim() == pytest.approx((np.nanmin(means), np.nanmax(means)))
    assert figure._suptitle.get_text() == (  # type: ignore[attr-defined]
        "Plasticity over a bucket, query × key\nTiny-1B"
    )
    assert "hatched" not in note(figure)
    caption = caption_of(figure)
    assert caption is not None
    assert "(sliding window, 8 heads; full attention, 4 heads)" in caption
    figure.draw_without_rendering()


def test_cells_of_fewer_heads_are_hatched_and_counted(run: Path) -> None:
    cells = open_run(run).bucket_plasticity
    figure = heatmap_figure(cells)  # the types are not known: windows and full layers together
    (tiles,) = [one for one in figure.axes[0].collections if isinstance(one, PatchCollection)]
    places = {tuple((path.vertices[0] + 0.5).tolist()) for path in tiles.get_paths()}
    assert places == {(q, k) for q in range(1, 6) for k in range(q - 1)}
    assert "hatched: cells with fewer than 12 heads, at least 4" in note(figure)
    assert "Hatched: cells with fewer than 12 heads" in (caption_of(figure) or "")
    assert "hatched" not in note(heatmap_figure(cells_table()))


def test_the_map_marks_types_of_layers(run: Path) -> None:
    figure = draw(MapPlot(run=str(run)))
    axes = figure.axes[0]
    strip = [one for one in axes.patches if isinstance(one, Rectangle)]
    colours = [one.get_facecolor() for one in strip]
    assert colours[0] == colours[2] != colours[1]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["sliding window", "full attention"]
    plain = map_figure(metrics_table()).axes[0]
    assert not plain.patches
    assert plain.get_legend() is None


def test_the_map_has_the_layers_of_the_table() -> None:
    metrics = aligned_metrics(metrics_table(9, 4).query("layer in (2, 3, 8)"))
    figure = map_figure(metrics, metric="drop")
    axes = figure.axes[0]
    assert axes.images[0].get_array().shape == (3, 4)  # type: ignore[union-attr]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["2", "3", "8"]
    marks = np.concatenate([np.asarray(one.get_offsets()) for one in axes.collections])
    assert set(marks[:, 1].tolist()) == {0, 1, 2}
    assert "without a value" not in note(figure)
    assert "0: no change from start to end" in note(figure)
    assert "dashed line: layers 4-7 left out" in note(figure)
    assert "The dashed line marks layers that are left out (4-7)." in (caption_of(figure) or "")
    dashed = [line.get_ydata()[0] for line in axes.lines if line.is_dashed()]  # type: ignore[index]
    assert dashed == [1.5]
    middle = map_figure(metrics_table(9, 4).query("layer >= 4")).axes[0]
    middle.figure.draw_without_rendering()
    assert "4" in [tick.get_text() for tick in middle.get_yticklabels()]


def test_layers_can_be_chosen_and_are_named(run: Path, tmp_path: Path) -> None:
    figure = draw(ComponentsPlot(run=str(run), layer_type="full"))
    assert note(figure) == "mean over 4 heads of layer 1 (full attention)"
    assert "4 query heads of Tiny-1B, layer 1 (full attention);" in (caption_of(figure) or "")
    by_number = draw(HeatmapPlot(run=str(run), layers=[0, 1]))
    assert note(by_number).startswith("8 heads of layers 0-1 ·")
    alone = tmp_path / "alone.csv"
    open_run(run).head_metrics.to_csv(alone, index=False)
    chosen = draw(MapPlot(metrics_csv=str(alone), layer_type="sliding"))
    assert note(chosen).startswith(
        "8 heads of layers 0,2 (sliding window) · dashed line: layer 1 left out"
    )
    open_run(run).bucket_plasticity.to_csv(alone, index=False)
    by_file = draw(HeatmapPlot(bucket_csv=str(alone), layers=[2]))
    assert note(by_file).startswith("4 heads of layer 2 ·")
    with pytest.raises(ConfigError, match="choose layers by number with --layers"):
        draw(HeatmapPlot(bucket_csv=str(alone), layer_type="full"))


def test_all_figures_of_chosen_layers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--layers", "0,2", "--model_name", "My model", "--footnote", "", "--format", "svg"]
    assert main(["plot", "all", str(run), *words]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.split()]
    assert len(paths) == 6
    for path in paths:
        caption = path.with_suffix(".txt").read_text()
        assert "8 query heads of My model, layers 0,2 (sliding window)" in caption
        assert "8 heads of layers" not in path.read_text()  # comments of the SVG hold its texts
    assert main(["plot", "map", str(run), "--layers", "7", "--output", "x.png"]) == 2
    assert "layers: 7 given; the table has layers 0-2" in capsys.readouterr().err
