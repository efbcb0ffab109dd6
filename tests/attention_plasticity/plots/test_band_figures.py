"""Figures of rotary bands and the rotary kernel draw what the tables say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from attention_plasticity.plots import (
    bands_figure,
    caption_of,
    frequencies_figure,
    kernel_figure,
)
from attention_plasticity.plots.band_map import band_grid
from attention_plasticity.plots.frequencies import fast_share
from attention_plasticity.plots.style import tokens_in_short
from band_tables import BANDS, WAVELENGTHS, bands_table, kernel_table
from qk_toolkit.errors import ConfigError


def metrics_table(bands: pd.DataFrame) -> pd.DataFrame:
    heads = bands[["layer", "q_head"]].drop_duplicates().reset_index(drop=True)
    phase = 0.1 * np.arange(len(heads))
    known = {"ap_phase_se": 0.01, "n_text_groups": 8}
    return heads.assign(ap_phase=phase, kernel_R2=0.75, kernel_R2_se=0.01, **known)


def note(figure: Figure) -> str:
    return figure._supxlabel.get_text()  # type: ignore[attr-defined]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def lines(figure: Figure, panel: int) -> dict[str, list[float]]:
    """Labelled lines of a panel."""
    drawn = figure.axes[panel].lines
    return {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in drawn}


def test_panels_of_one_head() -> None:
    table = bands_table()
    figure = bands_figure(table, layer=1, head=2, context=1000.0)
    rows = table[(table["layer"] == 1) & (table["q_head"] == 2)]
    assert lines(figure, 0)["mean lengths"] == rows["norm_product"].tolist()
    assert lines(figure, 0)["lengths of the means"] == rows["kernel_amplitude"].tolist()
    assert rows["variance_share"].tolist() in lines(figure, 1).values()
    assert lines(figure, 2)["queries"] == rows["q_concentration"].tolist()
    assert lines(figure, 2)["keys"] == rows["k_concentration"].tolist()
    assert figure.axes[2].get_xscale() == "log"
    assert "share of other dimensions: 0.10" in note(figure)
    assert "longest text, 1,000 tokens" in note(figure)
    assert "95 % interval" in note(figure)
    assert "8 groups of texts" in str(caption_of(figure))
    plain = bands_figure(table.drop(columns=["n_groups"]), layer=0, head=0, context=10.0**6)
    assert "interval" not in note(plain)  # degrees of freedom are not known
    assert "longest" not in note(plain)  # right of all bands


@pytest.mark.parametrize("metric", ["variance_share", "norm_product", "q_concentration"])
def test_map_of_all_heads(metric: str) -> None:
    table = bands_table()
    figure = bands_figure(table, metric=metric, context=1000.0)  # type: ignore[arg-type]
    drawn = np.asarray(figure.axes[0].images[0].get_array(), float)
    assert drawn.ravel().tolist() == table[metric].tolist()  # heads in order, then bands
    assert "6 heads" in note(figure)
    assert "longest text, 1,000 tokens" in str(caption_of(figure))
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["0", "1"]


def test_map_of_heads_with_other_bands() -> None:
    """A layer without RoPE has no row, and a head with fewer bands has blank ones."""
    table = bands_table(layers=3)
    table = table[(table["layer"] != 1) & ~((table["layer"] == 2) & (table["band"] > 2))]
    grid, heads, wavelength = band_grid(table, "norm_product")
    assert heads["layer"].tolist() == [0, 0, 0, 2, 2, 2]
    assert np.isnan(grid[3:, 3:]).all()
    assert not np.isnan(grid[:3]).any()
    assert wavelength.tolist() == list(WAVELENGTHS)
    bands_figure(table).draw_without_rendering()


def test_zero_is_white_in_a_map_with_negative_shares() -> None:
    table = bands_table()
    table.loc[0, "variance_share"] = -0.05
    table.loc[1, "variance_share"] = 0.0
    image = bands_figure(table).axes[0].images[0]
    red, green, blue, _ = image.to_rgba(np.array([[0.0]]))[0, 0]
    assert min(red, green, blue) > 0.93
    orange, purple = image.to_rgba(np.array([[-0.05, 0.3]]))[0]
    assert orange[0] > orange[2]
    assert purple[2] > purple[1]


def test_kernel_of_a_head() -> None:
    table = kernel_table()
    metrics = pd.DataFrame({"layer": [3], "q_head": [0], "kernel_R2": [0.75], "kernel_R2_se": 0.01})
    figure = kernel_figure(table, layer=3, head=0, metrics=metrics.assign(n_text_groups=9))
    first, second = figure.axes[0].lines
    assert np.asarray(first.get_ydata()).tolist() == table["mean_logit"][:12].tolist()
    assert np.asarray(second.get_ydata()) == pytest.approx(table["mean_logit"][:12])  # shifted
    assert "shifted by 2.00" in note(figure)
    assert "R² 0.750 ± 0.023" in figure.axes[0].get_title(loc="left")
    assert "9 groups of texts" in str(caption_of(figure))
    unknown = kernel_figure(table, layer=3, head=0)
    assert "R²" not in unknown.axes[0].get_title(loc="left")


def test_the_kernel_that_varies_most_is_the_default() -> None:
    figure = kernel_figure(kernel_table())
    assert "layer 3, head 1" in figure.axes[0].get_title(loc="left")
    assert "the head whose kernel varies most" in note(figure)


def test_phase_against_fast_bands() -> None:
    bands = bands_table()
    metrics = metrics_table(bands)
    figure = frequencies_figure(bands, metrics=metrics, limit=100.0)
    (points,) = [one for one in figure.axes[0].collections if isinstance(one, PathCollection)]
    drawn = np.asarray(points.get_offsets())
    shares = [
        sum(bands["variance_share"].iloc[start : start + 2])  # 6 and 30 tokens
        for start in range(0, len(bands), BANDS)
    ]
    assert drawn[:, 0] == pytest.approx(shares)
    assert drawn[:, 1] == pytest.approx(metrics["ap_phase"])
    assert figure.axes[0].get_xlabel() == "share of variance in bands below 100 tokens"
    assert "Spearman's ρ" in note(figure)
    missing = bands.assign(variance_share=bands["variance_share"].where(bands["layer"] > 0))
    assert fast_share(missing, 100.0).isna().tolist() == [True] * 3 + [False] * 3
    still = bands.assign(wavelength=np.nan)  # a band that never turns is slow
    assert fast_share(still, 100.0).tolist() == [0.0] * 6


def test_refusals() -> None:
    bands, kernel = bands_table(), kernel_table()
    metrics = metrics_table(bands)
    assert "has no rows of layer 9" in refusal(lambda: bands_figure(bands, layer=9, head=0))
    assert "give layer and head together" in refusal(lambda: bands_figure(bands, layer=1))
    assert "has no rows of layer 9" in refusal(lambda: kernel_figure(kernel, layer=9, head=0))
    assert "give layer and head together" in refusal(lambda: kernel_figure(kernel, head=1))
    assert "folder of the run" in refusal(lambda: frequencies_figure(bands, limit=64.0))
    assert "limit" in refusal(lambda: frequencies_figure(bands, metrics=metrics))
    without = metrics.assign(ap_phase=np.nan)
    assert "one position" in refusal(lambda: frequencies_figure(bands, metrics=without, limit=64.0))


def test_labels_of_tokens() -> None:
    numbers = [1, 6.283, 45.2, 512, 4080, 100_000, 2_500_000]
    assert [tokens_in_short(number) for number in numbers] == [
        *("1", "6.3", "45", "512", "4.1k", "100k", "2.5M")
    ]
