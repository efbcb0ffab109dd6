"""Arranges panels in a figure, with title and legend above them and notes below.

Words never cover data and have room at every width. Panels keep their height.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from attention_plasticity.figures.captions import Words, set_caption
from attention_plasticity.figures.marks import Entry
from attention_plasticity.figures.shapes import Bar, Panel
from attention_plasticity.figures.style import (
    COLUMN,
    NORMAL,
    QUIET,
    SMALLEST,
    TITLE,
    figure_style,
    figure_text,
    in_lines,
    joined_notes,
    text_width,
)

_LONGEST_NOTE = 600  # characters
_FEW_LAYERS = 6  # with a legend instead of a colour bar
_LINE = 1.3  # of the font size; from one line of text to the next
_MARGIN, _GAP = 3.0, 4.0  # points: at the border of a figure, and between texts and panels
_HANDLE, _BETWEEN = 17.0, 12.0  # points: handle of a legend with its space, space of two columns


@dataclass(frozen=True)
class Layout:
    """How panels are arranged: `height` in inches is that of one panel."""

    height: float = 1.9
    columns: int = 0  # 0: as many as fit
    share_x: bool = False
    share_y: bool = False
    least: float = 1.45  # inches; width of a panel
    entries: Sequence[Entry] = field(default=())  # further entries of the legend


def compose(
    panels: Sequence[Panel], words: Words, *, width: float = COLUMN, layout: Layout | None = None
) -> Figure:
    """A figure of panels with its caption. Panels whose colour bars are equal share one."""
    layout = layout or Layout()
    columns = layout.columns or max(1, min(len(panels), int(width / layout.least)))
    rows = math.ceil(len(panels) / columns)
    with figure_style():
        figure = Figure(figsize=(width, rows * layout.height))
        share: Any = {"sharex": layout.share_x, "sharey": layout.share_y}
        flat: list[Axes] = list(figure.subplots(rows, columns, squeeze=False, **share).flat)
        for unused in flat[len(panels) :]:
            unused.remove()
        entries = {label: handle for handle, label in layout.entries}
        size = (width / columns - 0.55, layout.height - 0.45)
        for place, (axes, panel) in enumerate(zip(flat, panels, strict=False)):
            for handle, label in panel.draw(axes):
                entries.setdefault(label, handle)
            panel.x.apply(axes, "x", size[0])
            panel.y.apply(axes, "y", size[1])
            title = in_lines(figure_text(panel.title), 72 * size[0] + 20, NORMAL)
            axes.set_title("\n".join(title), loc="center")
            outer = place % columns == 0, place + columns >= len(panels)
            _outer_labels(axes, layout, outer)
            if panel.bar is not None and _in_legend(panel.bar):
                entries |= _layer_entries(panel.bar)
        _colour_bars(figure, flat, panels, layout.height)
        _around(figure, words, entries, rows * layout.height)
        if words.caption:
            set_caption(figure, words.caption)
    return figure


def _in_legend(bar: Bar) -> bool:
    """Whether the colours are those of a few layers, which have entries in the legend."""
    return 0 < len(bar.layers) <= _FEW_LAYERS


def _layer_entries(bar: Bar) -> dict[str, Any]:
    shades = bar.colours.to_rgba(np.array(bar.layers))  # (layers, rgba)
    return {
        f"layer {layer}": Patch(color=tuple(shade))
        for layer, shade in zip(bar.layers, shades.tolist(), strict=True)
    }


def _outer_labels(axes: Axes, layout: Layout, outer: tuple[bool, bool]) -> None:
    """Keep the labels of shared axes at the first column and the last row only."""
    if layout.share_y and not outer[0]:
        axes.set_ylabel("")
        axes.tick_params(labelleft=False)
    if layout.share_x and not outer[1]:
        axes.set_xlabel("")
        axes.tick_params(labelbottom=False)


def _colour_bars(figure: Figure, axes: list[Axes], panels: Sequence[Panel], height: float) -> None:
    bars: list[Bar] = []
    for panel in panels:
        if panel.bar is not None and panel.bar not in bars and not _in_legend(panel.bar):
            bars.append(panel.bar)
    for bar in bars:
        own = [axes[place] for place, panel in enumerate(panels) if panel.bar == bar]
        options: Any = {"extend": "both" if bar.beyond else "neither", "pad": 0.02, "aspect": 25}
        side = "bottom" if len(bars) > 1 else "right"
        options["ticks"] = MaxNLocator(6, integer=bool(bar.layers))
        drawn = figure.colorbar(bar.colours, ax=own, location=side, **options)
        drawn.outline.set_visible(False)
        length = height - 0.4
        if side == "bottom":
            length = figure.get_figwidth() / len(bars) - 0.4
        drawn.set_label("\n".join(in_lines(figure_text(bar.label), 72 * length, NORMAL)))
        drawn.ax.tick_params(length=2.0)


def _around(figure: Figure, words: Words, entries: dict[str, Any], panels: float) -> None:
    """Write title, legend and notes above and below the panels, which keep their height."""
    room = 72 * figure.get_figwidth() - 2 * _MARGIN  # points
    title = in_lines(figure_text(words.title), room, TITLE, bold=True) if words.title else []
    notes = joined_notes([figure_text(note, _LONGEST_NOTE) for note in words.notes if note], room)
    columns = _legend_columns(list(entries), room)
    rows = -(-len(entries) // columns)
    heights = len(title) * TITLE * _LINE, rows * SMALLEST * 1.55, len(notes) * SMALLEST * _LINE
    above = sum(height + _GAP for height in heights[:2] if height)
    below = heights[2] + _GAP if notes else 0.0
    height = 72 * panels + above + below + 2 * _MARGIN  # points
    figure.set_figheight(height / 72)
    left, top = _MARGIN / (room + 2 * _MARGIN), 1.0 - _MARGIN / height
    options: Any = {"fontsize": TITLE, "fontweight": "bold", "linespacing": _LINE / 1.17}
    if title:
        figure.text(left, top, "\n".join(title), va="top", gid="title", **options)
    if entries:
        legend = figure.legend(
            list(entries.values()),
            list(entries),
            loc="upper left",
            bbox_to_anchor=(left, top - (heights[0] + _GAP * bool(title)) / height),
            ncols=columns,
            borderaxespad=0.0,
            borderpad=0.0,
            handlelength=1.6,
            handletextpad=0.5,
            columnspacing=_BETWEEN / SMALLEST,
            labelspacing=0.3,
        )
        legend.set_in_layout(False)
    if notes:
        options |= {"fontsize": SMALLEST, "fontweight": "normal", "color": QUIET}
        figure.text(left, _MARGIN / height, "\n".join(notes), va="bottom", gid="notes", **options)
    inner = (below + _MARGIN) / height
    rect = (0.0, inner, 1.0, 1.0 - inner - (above + _MARGIN) / height)
    square = any(axes.get_aspect() == 1.0 for axes in figure.axes)
    engine: Any = "compressed" if square else "constrained"  # no space beside squares
    figure.set_layout_engine(engine, rect=rect, w_pad=0.03, h_pad=0.03, wspace=0.03)


def _legend_columns(labels: Sequence[str], room: float) -> int:
    """The largest number of columns in which a legend is not wider than the figure."""
    widths = [_HANDLE + text_width(label) for label in labels]
    for columns in range(len(labels), 1, -1):
        parts = np.array_split(np.array(widths), columns)  # as a legend does
        if sum(part.max() for part in parts) + _BETWEEN * (columns - 1) <= room:
            return columns
    return 1
