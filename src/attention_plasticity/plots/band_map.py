"""Heat map of one metric of the rotary bands of all heads."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, FuncNorm, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from attention_plasticity.metrics import BANDS
from attention_plasticity.plots.settings import BandMetric
from attention_plasticity.plots.style import (
    FAINT,
    INK,
    SEQUENTIAL,
    SIGNED,
    figure_style,
    legend_above,
    new_figure,
    require_colormap,
    tokens_in_short,
)
from attention_plasticity.plots.words import Words
from attention_plasticity.tables.csv_tables import require_columns, require_values
from attention_plasticity.tables.profiles import HEAD

Floats = npt.NDArray[np.float64]

_METRICS = {metric.column: metric for metric in BANDS.columns}
_LARGEST = 0.99  # quantile of the values that has the last colour
_TICK_ROOM = 0.08  # of the colour bar, between two labels
_MOST_LABELS = 7  # of wavelengths
_MOST_LAYERS = 12  # with a label


def band_map(
    bands: pd.DataFrame,
    metric: BandMetric,
    context: float | None,
    cmap: str | None,
    words: Words,
) -> Figure:
    """Draw a row per head, sorted by layer, and a column per band, from fast to slow."""
    require_columns(bands, [metric], "the table of bands")
    require_values(bands, metric, "the table of bands")
    grid, heads, wavelength = band_grid(bands, metric)
    norm, shades, limited = _colours(grid, metric, cmap)
    label = _METRICS[metric].label
    with figure_style():
        figure, axes = new_figure(height=min(6.5, max(2.9, 1.7 + 0.014 * len(heads))))
        drawn = axes.imshow(grid, cmap=shades, norm=norm, aspect="auto", interpolation="nearest")
        extend = "max" if limited else "neither"
        bar = figure.colorbar(drawn, ax=axes, pad=0.02, extend=extend)
        bar.outline.set_visible(False)
        bar.set_label(f"{label} (logits)" if metric == "norm_product" else label)
        if isinstance(norm, FuncNorm):
            ticks = _ticks(norm)
            bar.set_ticks(ticks, labels=[f"{tick:g}".replace("-", "−") for tick in ticks])
            bar.minorticks_off()
        rows = _axes(figure, axes, heads, wavelength, context, bool(np.isnan(grid).any()))
        notes = [
            words.heads(len(heads)),
            f"{grid.shape[1]} bands",
            "rows: heads, by layer",
            f"{100 - 100 * _LARGEST:.0f} % of the values are beyond the last colour"
            if limited
            else None,
        ]
        caption = words.caption(
            len(heads),
            f"{label[0].upper()}{label[1:]} of the rotary bands of every head: "
            f"{_METRICS[metric].meaning}. Rows are heads, sorted by layer; columns are bands, from "
            "fast to slow, with their tokens per turn.",
            f"The last colour also stands for larger values, {100 - 100 * _LARGEST:.0f} % of all."
            if limited
            else None,
            f"The dashed line is the length of the longest text, {context:,.0f} tokens."
            if rows and context
            else None,
        )
        words.write(figure, axes, f"Rotary bands: {label}", notes, caption, rows)
    return figure


def band_grid(bands: pd.DataFrame, metric: str) -> tuple[Floats, pd.DataFrame, Floats]:
    """(heads × bands) values, the heads, and the median wavelength of every band."""
    table = bands.pivot_table(metric, HEAD, "band", aggfunc="first", dropna=False, sort=True)
    numbers = np.arange(int(bands["band"].max()) + 1)
    table = table.reindex(columns=numbers)
    table = table[table.index.isin(pd.MultiIndex.from_frame(bands[HEAD]))]  # no other layers
    wavelength = bands.groupby("band")["wavelength"].median().reindex(numbers)
    heads = table.index.to_frame(index=False)
    return table.to_numpy(np.float64), heads, wavelength.to_numpy(np.float64)


def _colours(
    grid: Floats, metric: BandMetric, cmap: str | None
) -> tuple[Normalize, Colormap, bool]:
    """The range of colours, the colours, and whether large values are beyond the last colour.

    Except for concentrations, a colour stands for the root of a value: few bands are much larger
    than the others.
    """
    if _METRICS[metric].format == "share":
        return Normalize(0.0, 1.0), mpl.colormaps[require_colormap(cmap or SEQUENTIAL)], False
    low, largest = min(0.0, float(np.nanmin(grid))), float(np.nanmax(grid))
    high = float(np.nanquantile(grid, _LARGEST))
    limited = 0.0 < high < 0.8 * largest and -low <= high
    high = high if limited else max(largest, -low) or 1.0
    norm = FuncNorm((_root, _square), low, high)
    if not _METRICS[metric].signed:
        return norm, mpl.colormaps[require_colormap(cmap or SEQUENTIAL)], limited
    shades = mpl.colormaps[require_colormap(cmap or SIGNED)]
    first = 0.5 - 0.5 * float(np.sqrt(-low / high))  # zero is in the middle of the colormap
    return norm, ListedColormap(shades(np.linspace(first, 1.0, 512))), limited


def _ticks(norm: Normalize) -> list[float]:
    """Round values between the first and the last colour, with room for their labels."""
    low, high = float(norm.vmin or 0.0), float(norm.vmax or 1.0)
    size = 10.0 ** np.floor(np.log10(high))
    chosen: list[float] = []
    for part in (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.0, -0.01, -0.02, -0.05, -0.1, -0.2, -0.5):
        for value in (5.0 * part * size, 2.0 * part * size, part * size):
            inside = low <= value <= high
            if inside and all(abs(norm(value) - norm(other)) > _TICK_ROOM for other in chosen):
                chosen.append(value)
    return sorted(chosen)


def _root(values: Floats) -> Floats:
    return np.asarray(np.sign(values) * np.sqrt(np.abs(values)))


def _square(values: Floats) -> Floats:
    return np.asarray(np.sign(values) * np.square(values))


def _axes(
    figure: Figure,
    axes: Axes,
    heads: pd.DataFrame,
    wavelength: Floats,
    context: float | None,
    missing: bool,
) -> int:
    """Label layers and wavelengths. Returns the rows of the legend."""
    step = -(-len(wavelength) // _MOST_LABELS)
    known = [place for place in range(0, len(wavelength), step) if wavelength[place] > 0]
    axes.set_xticks(known, [tokens_in_short(wavelength[place]) for place in known])
    axes.set_xlabel("wavelength of the band (tokens)")
    layers, starts = np.unique(heads["layer"], return_index=True)
    ends = np.append(starts[1:], len(heads))
    every = -(-len(layers) // _MOST_LAYERS)
    axes.set_yticks(((starts + ends - 1) / 2)[::every], [str(layer) for layer in layers[::every]])
    axes.set_ylabel("layer")
    if len(layers) <= _MOST_LAYERS:
        for start in starts[1:]:
            axes.axhline(start - 0.5, color="white", linewidth=0.8)
    handles: list[Artist] = []
    labels: list[str] = []
    turning = np.flatnonzero(wavelength > 0)
    if context is not None and len(turning) > 1:
        order = turning[np.argsort(wavelength[turning], kind="stable")]
        if wavelength[order[0]] < context < wavelength[order[-1]]:
            at = float(np.interp(np.log(context), np.log(wavelength[order]), order))
            axes.axvline(at, color="white", linewidth=2.0)
            line = axes.axvline(at, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
            handles.append(line)
            labels.append(f"longest text: {context:,.0f} tokens")
    if missing:
        axes.set_facecolor(FAINT)
        handles.append(Patch(color=FAINT))
        labels.append("no value")
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    return legend_above(axes, handles, labels, colour_bar=True) if handles else 0
