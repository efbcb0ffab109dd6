"""Mean logit by distance, and the rotary kernel, of one head."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from attention_plasticity.metrics import KERNEL_R2
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.intervals import band
from attention_plasticity.plots.style import (
    BLUE,
    FAINT,
    VERMILION,
    figure_style,
    legend_above,
    new_figure,
    whole,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.intervals import head_half_width, row_half_width
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]


def kernel_figure(
    kernel: pd.DataFrame,
    *,
    layer: int | None = None,
    head: int | None = None,
    metrics: pd.DataFrame | None = None,
    influences: pd.DataFrame | None = None,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw the mean logit of a head by distance with its 95 % interval, and its rotary kernel.

    The kernel is shifted by a constant, so that both have the same mean over the bins: a constant
    does not change attention. The title has R², if `metrics` has it. Without `layer` and `head`,
    the head whose kernel varies most is drawn.

    `kernel` has one row per query head and bin of distances, such as `Run.table("kernel")`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import kernel_figure
        >>> run = open_run("results/sample")
        >>> figure = kernel_figure(run.table("kernel"), layer=0, head=1, metrics=run.head_metrics)
        >>> figure.axes[0].get_ylabel()
        'logit'
    """
    words = Words(**texts)
    rows, chosen = _rows_of(kernel, layer, head)
    require_values(rows, "mean_logit", "the table of the kernel")
    first = rows.iloc[0]
    name = f"layer {first['layer']:.0f}, head {first['q_head']:.0f}"
    x, mean, line = (
        rows[column].to_numpy(np.float64) for column in ("distance", "mean_logit", "kernel")
    )
    shift = float((mean - line).mean())
    moved = f"{shift:.2f}".replace("-", "−")
    half = row_half_width(rows, "mean_logit")
    r2 = _r2(metrics, influences, first)
    with figure_style():
        figure, axes = new_figure()
        (of_pairs,) = axes.plot(x, mean, color=BLUE, marker="o", markersize=3, linewidth=1.2)
        shaded = band(axes, x, mean, half, color=BLUE, alpha=0.2)
        (of_means,) = axes.plot(
            x, line + shift, color=VERMILION, linewidth=1.4, linestyle=(0, (4, 2))
        )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(base=2.0, numticks=9))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: whole(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("distance from query to key (tokens)")
        axes.set_ylabel("logit")
        axes.grid(axis="y", color=FAINT, linewidth=0.4)
        axes.set_axisbelow(True)
        axes.margins(x=0.02)
        legend = legend_above(axes, [of_pairs, of_means], ["mean logit", "rotary kernel, shifted"])
        notes = [
            f"kernel shifted by {moved}: a constant does not change attention",
            "band: 95 % interval over texts" if shaded is not None else None,
            "the head whose kernel varies most" if chosen else None,
        ]
        caption = words.caption(
            1,
            f"Mean logit of {name} by distance, over pairs of a query and an earlier key, and its "
            "rotary kernel: the logit of the mean query and the mean key at the same positions.",
            f"The kernel is shifted by {moved}, so that both have the same mean; a constant does "
            "not change attention.",
            f"R² of the kernel is {r2}." if r2 else None,
            interval_sentence("The band is the 95 % interval,", rows["n_groups"])
            if shaded is not None
            else None,
            "Of all heads, this one has the kernel that varies most." if chosen else None,
        )
        title = f"Rotary kernel, {name}"
        words.write(figure, axes, f"{title}: R² {r2}" if r2 else title, notes, caption, legend)
    return figure


def _rows_of(
    kernel: pd.DataFrame, layer: int | None, head: int | None
) -> tuple[pd.DataFrame, bool]:
    """The rows of a head, and whether it was chosen because its kernel varies most."""
    if (layer is None) != (head is None):
        raise ConfigError("layer: give layer and head together, or neither")
    chosen = layer is None
    if chosen:
        require_values(kernel, "kernel", "the table of the kernel")
        spread = kernel.groupby(HEAD)["kernel"].std(ddof=0)
        place = int(np.nanargmax(spread.to_numpy(np.float64)))
        layer, head = spread.index.to_frame().to_numpy()[place].tolist()
        chosen = len(spread) > 1
    rows = kernel[(kernel["layer"] == layer) & (kernel["q_head"] == head)]
    if rows.empty:
        raise ConfigError(f"the table of the kernel: has no rows of layer {layer}, head {head}")
    return rows.sort_values("distance"), chosen


def _r2(
    metrics: pd.DataFrame | None, influences: pd.DataFrame | None, head: pd.Series[float]
) -> str | None:
    """R² of the kernel of a head with its interval; None if it is not known."""
    if metrics is None or KERNEL_R2 not in metrics:
        return None
    row = metrics[(metrics["layer"] == head["layer"]) & (metrics["q_head"] == head["q_head"])]
    if row.empty or np.isnan(row[KERNEL_R2].iloc[0]):
        return None
    value = float(row[KERNEL_R2].iloc[0])
    half = float(head_half_width(row, KERNEL_R2, influences)[0])
    if np.isnan(half):
        return f"{value:.3f}".replace("-", "−")
    shown = 4 if half < 0.002 else 3  # decimals
    return f"{value:.{shown}f} ± {half:.{shown}f}".replace("-", "−")
