"""Map of one value of every key head, layer × key head."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.layer_rows import label_axes, layers_left_out, mark_gaps
from attention_plasticity.plots.map import head_grid, mark_missing, mark_types
from attention_plasticity.plots.shown import capitalised
from attention_plasticity.plots.style import (
    SEQUENTIAL,
    figure_style,
    figure_text,
    label_lines,
    new_figure,
    require_colormap,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.csv_tables import require_columns, require_values
from attention_plasticity.tables.intervals import row_half_width
from attention_plasticity.tables.layer_types import layer_types
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

STATIC_ERROR = "static_error"
_METRICS = {metric.column: metric for metric in KEY_HEADS.columns}
_SOURCE = "the table of key heads"
_AROUND, _LEGEND_ROW = 1.05, 0.3  # inches; height of the texts around a map, and of a legend


def key_heads_figure(
    key_heads: pd.DataFrame,
    *,
    metric: str = STATIC_ERROR,
    cmap: str | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw a value of every key head: by default the static error of the queries of its group.

    Static errors have the range 0 to 0.5, other shares 0 to 1. Rows are the layers of the table; a
    dashed line marks layers that are left out between them.

    `key_heads` has one row per key head, such as `Run.table("key_heads")`.

    Examples:
        >>> import pandas as pd
        >>> from attention_plasticity.plots import key_heads_figure
        >>> table = {"layer": [0, 0, 1], "k_head": [0, 1, 0], "static_error": [0.1, 0.2, 0.4]}
        >>> figure = key_heads_figure(pd.DataFrame(table))
        >>> figure.axes[0].get_xlabel(), figure.axes[0].images[0].get_clim()
        ('key head', (0.0, 0.5))
    """
    words = Words(**texts)
    require_columns(key_heads, ["layer", "k_head", metric], _SOURCE)
    if not pd.api.types.is_numeric_dtype(key_heads[metric]):
        raise ConfigError(f"metric: {metric}: holds words, not numbers; choose another column")
    require_values(key_heads, metric, _SOURCE)
    layers = np.unique(key_heads["layer"].to_numpy(np.int64))
    grid = head_grid(key_heads.assign(q_head=key_heads["k_head"]), metric)  # (layers, key heads)
    low, high = _range(metric, grid)
    low, high = low if vmin is None else vmin, high if vmax is None else vmax
    if low >= high:
        raise ConfigError(f"vmin: must be below vmax, got {low:g} and {high:g}")
    label = _METRICS[metric].label if metric in _METRICS else metric
    with figure_style():
        height = min(6.5, max(2.6, 1.4 + 0.085 * len(layers)))
        figure, axes = new_figure(height=height)
        shades = SEQUENTIAL if cmap is None else require_colormap(cmap)
        drawn = axes.imshow(
            grid, cmap=shades, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
        )
        label_axes(axes, layers)
        axes.set_xlabel("key head")
        bar = figure.colorbar(drawn, ax=axes, pad=0.02)
        bar.outline.set_visible(False)
        mark_missing(axes, grid, "dots")
        mark_gaps(axes, layers)
        rows = mark_types(axes, layer_types(key_heads), layers)
        room = height - _AROUND - _LEGEND_ROW * rows
        bar.set_label(label_lines(figure_text(label), room))
        _write_words(words, figure, key_heads, metric, label, rows)
    return figure


def _range(metric: str, grid: np.ndarray) -> tuple[float, float]:
    """The values of the first and the last colour."""
    if "static_error" in metric and not metric.endswith("_se"):
        return 0.0, 0.5
    if metric in _METRICS and _METRICS[metric].format == "share":
        return 0.0, 1.0
    low, high = float(np.nanmin(grid)), float(np.nanmax(grid))
    return (low, high) if low < high else (low, low + 1.0)


def _write_words(
    words: Words,
    figure: Figure,
    key_heads: pd.DataFrame,
    metric: str,
    label: str,
    legend_rows: int,
) -> None:
    known = int(key_heads[metric].notna().sum())
    missing = len(key_heads) - known
    layers = np.unique(key_heads["layer"].to_numpy(np.int64))
    left_out, left_out_sentence = layers_left_out(layers)
    half, groups = None, None
    widths = row_half_width(key_heads, metric)
    if np.isfinite(widths).any():
        half = f"{np.nanmedian(widths):.2g}"
        groups = key_heads["n_groups"].to_numpy(np.float64)[np.isfinite(widths)]
    number = count(known, "key head")
    notes = [
        f"{number} of {words.selection}" if words.selection else number,
        f"{missing:,} without a value: dots" if missing else None,
        left_out,
        f"95 % interval of a key head: ±{half} (median)" if half else None,
    ]
    meaning = f" ({_METRICS[metric].meaning})" if metric in _METRICS else ""
    caption = words.caption(
        known,
        f"{capitalised(label)} of every key head, by layer and key head{meaning}.",
        f"Dots mark {missing:,} key heads without a value." if missing else None,
        f"The 95 % interval of a key head is ±{half} in the median." if half else None,
        interval_sentence("The intervals come", groups) if groups is not None else None,
        left_out_sentence,
        "The strip at the left marks the types of layers." if legend_rows else None,
        noun="key head",
    )
    title = f"{capitalised(label)} by key head"
    words.write(figure, figure.axes[0], title, notes, caption, legend_rows)
