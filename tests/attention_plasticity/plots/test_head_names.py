"""Names of heads cover no point, no other name and no end of the axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.text import Annotation

from attention_plasticity.plots import attended_figure, phase_figure
from attention_plasticity.plots.style import figure_style
from run_tables import aligned_metrics, metrics_table


def crowded(heads: int, seed: int = 0) -> pd.DataFrame:
    """Heads whose points are close together, and near the diagonal."""
    rng = np.random.default_rng(seed)
    rows = metrics_table().iloc[np.arange(heads) % 12].reset_index(drop=True)
    metrics = aligned_metrics(rows)
    metrics["layer"], metrics["q_head"] = np.divmod(np.arange(heads), 12)
    metrics["ap_aligned"] = rng.normal(0.5, 0.06, heads)
    metrics["ap_pooled"] = metrics["ap_aligned"] + rng.uniform(0.02, 0.15, heads)
    metrics["ap_phase"] = metrics["ap_pooled"] - metrics["ap_aligned"]
    return metrics.assign(ap_attended=metrics["ap_aligned"] + rng.normal(0, 0.05, heads))


def names_of(axes: Axes) -> list[Annotation]:
    return [text for text in axes.texts if isinstance(text, Annotation) and text.get_text()]


@pytest.mark.parametrize("heads", [27, 270])
@pytest.mark.parametrize(("draw", "number"), [(phase_figure, 5), (attended_figure, 4)])
def test_names_cover_no_point_and_no_name(heads: int, draw: object, number: int) -> None:
    assert callable(draw)
    with figure_style():
        figure = draw(crowded(heads), model_name="model")
        figure.set_dpi(300)  # as it is saved
        figure.draw_without_rendering()
        for axes in figure.axes[:-1]:  # the last one is the colour bar
            names = names_of(axes)
            assert len({name.get_text() for name in names}) == len(names) == number
            boxes = [name.get_tightbbox() for name in names]
            assert all(
                box is not None and axes.get_window_extent().contains(*corner)
                for box in boxes
                for corner in (box.p0, box.p1)
            )
            (points,) = [one for one in axes.collections if isinstance(one, PathCollection)]
            for x, y in axes.transData.transform(np.asarray(points.get_offsets())):
                assert not any(box.padded(4).contains(x, y) for box in boxes)  # about one point
            for first, box in enumerate(boxes):
                assert not any(box.overlaps(other) for other in boxes[first + 1 :])


def test_a_name_apart_from_its_point_has_a_line() -> None:
    metrics = crowded(270)
    axes = phase_figure(metrics).axes[0]
    (points,) = [one for one in axes.collections if isinstance(one, PathCollection)]
    named = np.asarray(points.get_offsets())[metrics["ap_phase"].nlargest(5).index]  # (5, 2)
    ends = [text.xy for text in axes.texts if isinstance(text, Annotation) and text.arrow_patch]
    assert ends
    assert all(np.isclose(named, end).all(axis=1).any() for end in ends)


@pytest.mark.parametrize("seed", range(6))
def test_no_line_crosses_a_name(seed: int) -> None:
    """Heads with names at the end of a dense cloud, where few places are free."""
    metrics = crowded(270, seed)
    rng = np.random.default_rng(seed)
    metrics["ap_pooled"] = rng.beta(8, 3, len(metrics))
    metrics["ap_aligned"] = metrics["ap_pooled"] * rng.uniform(0.3, 1.0, len(metrics))
    metrics["ap_phase"] = metrics["ap_pooled"] - metrics["ap_aligned"]
    with figure_style():
        figure = phase_figure(metrics, model_name="model")
        figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = {name.get_text(): name.get_window_extent() for name in names_of(axes)}
    assert len(boxes) >= 2  # names without a free place are left out
    own = ""
    for text in axes.texts:
        assert isinstance(text, Annotation)
        own = text.get_text() or own  # the line of a name is drawn after it
        if text.arrow_patch is not None:
            path = text.arrow_patch.get_path().transformed(text.arrow_patch.get_transform())
            crossed = {name for name, box in boxes.items() if path.intersects_bbox(box, False)}
            assert crossed <= {own}
