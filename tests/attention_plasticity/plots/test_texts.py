"""The strip with the number of texts in each bin or bucket."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure

from attention_plasticity.plots import plasticity_figure, profile_figure
from attention_plasticity.plots.captions import caption_of
from qk_dump.buckets import BucketGeometry
from run_tables import cells_table

CELLS = cells_table().assign(n_texts=lambda table: 10 - table["q_bucket"])


def strip(figure: Figure) -> tuple[list[str], list[tuple[float, float]]]:
    """The numbers of the strip, and the borders of its tiles."""
    axes = figure.axes[0]
    tiles = [one for one in axes.collections if isinstance(one, PatchCollection)]
    paths = tiles[0].get_paths() if tiles else []
    borders = [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in paths]
    return [text.get_text() for text in axes.texts], borders


@pytest.mark.parametrize("known", [True, False])
def test_the_strip_of_buckets(known: bool) -> None:
    geometry = BucketGeometry("uniform", 128) if known else None
    figure = plasticity_figure(CELLS, geometry=geometry)
    texts, borders = strip(figure)
    assert texts == ["9", "8", "7", "6", "5", "texts"]
    assert borders[:4] == [(128.0 * bucket, 128.0 * (bucket + 1)) for bucket in range(1, 5)]
    assert borders[4] == (640.0, figure.axes[0].get_xlim()[1])
    figure.draw_without_rendering()
    assert figure.axes[0].spines["bottom"].get_position()[0] == "outward"  # type: ignore[index]
    assert "from 9 to 5" in (caption_of(figure) or "")


def test_the_strip_ends_with_a_logarithmic_axis() -> None:
    geometry = BucketGeometry("log", 2)
    cells = CELLS.assign(q_position=lambda table: 1.4 * 2.0 ** table["q_bucket"])
    figure = plasticity_figure(cells, geometry=geometry)
    texts, borders = strip(figure)
    assert texts == ["9", "8", "7", "6", "5", "texts"]
    low, high = figure.axes[0].get_xlim()
    assert borders[0][0] == pytest.approx(low)  # bucket 1 begins at 0, before the axis
    assert borders[1] == (3.0, 7.0)
    assert borders[-1][1] == pytest.approx(high)
    figure.draw_without_rendering()


def test_many_buckets_have_their_first_and_last_number() -> None:
    many = cells_table(1, 1, 80).assign(n_texts=lambda table: 1000 - 10 * table["q_bucket"])
    texts, borders = strip(plasticity_figure(many))
    assert (texts[0], texts[-2], texts[-1]) == ("990", "210", "texts")
    assert len(borders) == 79
    assert len(texts) < 20


def test_the_profile_has_the_same_strip() -> None:
    assert strip(profile_figure(CELLS)) == strip(plasticity_figure(CELLS))


def test_equal_or_unknown_numbers_have_no_strip() -> None:
    equal = plasticity_figure(CELLS.assign(n_texts=12))
    assert strip(equal) == ([], [])
    assert equal.get_supxlabel() == (
        "12 heads  ·  12 texts in every bucket  ·  over a bucket: with rotary phase"
    )
    assert "Every bucket has queries of 12 texts." in (caption_of(equal) or "")
    for cells in (CELLS.assign(n_texts=np.nan), cells_table()):
        for figure in (plasticity_figure(cells), profile_figure(cells)):
            assert strip(figure) == ([], [])
            assert "texts" not in figure._supxlabel.get_text()  # type: ignore[attr-defined]
