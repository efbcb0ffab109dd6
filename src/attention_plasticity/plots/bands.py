"""Rotary bands over their wavelength, of one head, or of all heads as a heat map."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from attention_plasticity.plots.band_map import band_map
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.intervals import whiskers
from attention_plasticity.plots.settings import BandMetric
from attention_plasticity.plots.style import (
    BLUE,
    FAINT,
    INK,
    QUIET,
    VERMILION,
    figure_style,
    new_figure,
    tokens_in_short,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.intervals import row_half_width
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]

_HEIGHT = 5.4  # inches, of three panels


def bands_figure(
    bands: pd.DataFrame,
    *,
    layer: int | None = None,
    head: int | None = None,
    metric: BandMetric = "variance_share",
    context: float | None = None,
    cmap: str | None = None,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw the rotary bands of one head, or one metric of the bands of all heads.

    One head has three panels over the wavelength of a band: its size in logits, its share of the
    variance of the logit, and the concentration of queries and keys. Whiskers are 95 % intervals.
    A dashed line marks `context`, the largest number of tokens of a text.

    Without `layer` and `head`, a heat map has a row per head and a column per band, with the colour
    of `metric`.

    `bands` has one row per query head and band, such as `Run.table("bands")`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import bands_figure
        >>> run = open_run("results/sample")
        >>> figure = bands_figure(run.table("bands"), layer=0, head=1)
        >>> figure.axes[1].get_ylabel()
        'share of variance'
    """
    if (layer is None) != (head is None):
        raise ConfigError("layer: give layer and head together, or neither")
    if layer is None:
        return band_map(bands, metric, context, cmap, Words(**texts))
    rows = bands[(bands["layer"] == layer) & (bands["q_head"] == head)]
    if rows.empty:
        raise ConfigError(f"the table of bands: has no rows of layer {layer}, head {head}")
    require_values(rows, "wavelength", "the table of bands")
    return _of_head(rows, f"layer {layer}, head {head}", context, Words(**texts))


def _of_head(rows: pd.DataFrame, name: str, context: float | None, words: Words) -> Figure:
    """Three panels of one head."""
    wavelength = rows["wavelength"].to_numpy(np.float64)  # (bands,)
    with figure_style():
        figure, grid = new_figure(height=_HEIGHT, nrows=3, sharex=True)
        sizes, shares, concentrations = grid
        _points(sizes, rows, "norm_product", BLUE, "mean lengths")
        _line(sizes, rows, "kernel_amplitude", VERMILION, "lengths of the means")
        sizes.set_ylabel("size (logits)")
        sizes.set_ylim(bottom=0.0)
        shares.axhline(0.0, color=QUIET, linewidth=0.8)
        known = _points(shares, rows, "variance_share", BLUE, None)
        shares.set_ylabel("share of variance")
        known |= _points(concentrations, rows, "q_concentration", BLUE, "queries")
        known |= _points(concentrations, rows, "k_concentration", VERMILION, "keys", marker="s")
        concentrations.set_ylabel("concentration")
        concentrations.set_ylim(-0.03, 1.03)
        marked = _wavelengths(grid, wavelength, context)
        for axes in (sizes, concentrations):
            _legend(axes)
        rest = 1.0 - float(rows["variance_share"].sum(skipna=False))
        notes = [
            "sizes: mean lengths and lengths of the means, queries × keys",
            f"dashed: longest text, {context:,.0f} tokens" if marked else None,
            _rest_note(rest),
            "whiskers: 95 % interval over texts" if known else None,
        ]
        caption = words.caption(
            1,
            f"Rotary bands of {name}: pairs of dimensions that RoPE turns with one frequency, over "
            "the tokens per turn.",
            "Top: mean length of a query times mean length of a key in the band, and length of the "
            "mean query times length of the mean key before RoPE, which is the amplitude of the "
            "rotary kernel, both in logits. Middle: share of the variance of the logit over pairs "
            "of a query and an earlier key. Bottom: concentration, the length of the mean divided "
            "by the mean length before RoPE.",
            f"Dimensions that RoPE does not turn have {rest:.2f} of the variance."
            if _rest_note(rest)
            else None,
            f"The dashed line is the length of the longest text, {context:,.0f} tokens."
            if marked
            else None,
            interval_sentence("Whiskers are 95 % intervals,", _groups(rows)) if known else None,
        )
        words.write(figure, None, f"Rotary bands, {name}", notes, caption)
    return figure


def _rest_note(rest: float) -> str | None:
    """The share of the dimensions that do not turn, if there are such dimensions."""
    return f"share of other dimensions: {rest:.2f}" if abs(rest) > 0.005 else None


def _groups(rows: pd.DataFrame) -> Floats:
    return rows.reindex(columns=["n_groups"])["n_groups"].to_numpy(np.float64)


def _points(
    axes: Axes, rows: pd.DataFrame, column: str, colour: str, label: str | None, marker: str = "o"
) -> bool:
    """Draw a column with whiskers. Returns whether some are known."""
    x, y = (rows[name].to_numpy(np.float64) for name in ("wavelength", column))
    axes.plot(x, y, color=colour, marker=marker, markersize=3.0, linewidth=0.9, label=label)
    if f"{column}_se" not in rows:
        return False
    half = row_half_width(rows, column)
    return whiskers(axes, x, y, half, colour, cap=0.0) is not None


def _line(axes: Axes, rows: pd.DataFrame, column: str, colour: str, label: str) -> None:
    if column in rows:
        axes.plot(
            rows["wavelength"],
            rows[column],
            color=colour,
            marker="s",
            markersize=2.6,
            linewidth=0.9,
            label=label,
        )


def _legend(axes: Axes) -> None:
    """A legend above a panel, in one row."""
    handles, labels = axes.get_legend_handles_labels()
    handles = [handle for handle in handles if isinstance(handle, Line2D)]
    axes.legend(
        handles,
        labels,
        loc="lower right",
        bbox_to_anchor=(1, 1.03),
        ncols=2,
        borderaxespad=0.0,
        borderpad=0.1,
        handlelength=1.4,
        columnspacing=1.2,
    )


def _wavelengths(grid: npt.NDArray[np.object_], wavelength: Floats, context: float | None) -> bool:
    """Set up the common axis. Returns whether the context is marked."""
    last: Axes = grid[-1]
    last.set_xscale("log")
    last.set_xlabel("wavelength of the band (tokens)")
    last.xaxis.set_major_locator(LogLocator(base=10.0, numticks=8))
    last.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tokens_in_short(value)))
    last.xaxis.set_minor_formatter(NullFormatter())
    low, high = float(np.nanmin(wavelength)), float(np.nanmax(wavelength))
    inside = context is not None and low < context < high
    for axes in grid:
        axes.grid(axis="y", color=FAINT, linewidth=0.4)
        axes.set_axisbelow(True)
        axes.margins(x=0.02)
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        if inside and context is not None:
            axes.axvline(context, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    return inside
