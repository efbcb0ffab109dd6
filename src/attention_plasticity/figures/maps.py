"""Maps of heads: a metric of every head, roles, rotary bands. Layer 0 is at the top of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from attention_plasticity.figures.captions import capitalised, plasticity_of
from attention_plasticity.figures.compose import Layout
from attention_plasticity.figures.draw import Drawing, Request, wanted_metric
from attention_plasticity.figures.marks import (
    CellLines,
    Entry,
    LayerTypes,
    Mark,
    Marked,
    TestMarks,
    Tests,
    gaps_sentence,
    layer_gaps,
)
from attention_plasticity.figures.shapes import Bar, Grid
from attention_plasticity.figures.style import (
    FAINT,
    SEQUENTIAL,
    SIGNED,
    Axis,
)
from attention_plasticity.metric import Metric
from attention_plasticity.metrics import ALIGNED_DROP, DROP_DISTANCE, DROP_POSITION
from attention_plasticity.roles import MIXED, NAMES, ROLES
from attention_plasticity.tables.head_roles import COLOURS, is_unsure, why_unsure
from attention_plasticity.tables.intervals import quantity_groups
from attention_plasticity.tables.layer_types import layer_types
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, main_plasticity
from qk_toolkit.formatting import count, two_digits

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_DROPS = (ALIGNED_DROP, DROP_POSITION, DROP_DISTANCE)
_FADED = 0.6  # share of white in the colour of an unsure head
_PALE = 0.28  # opacity of a head whose interval contains 0
_MOST_LINES = 48  # layers or heads between which there are lines


@dataclass(frozen=True)
class HeadGrid:
    """Heads of a table as layers × heads."""

    layers: Ints  # (rows,)
    row: Ints  # (heads,) row of every head
    head: Ints  # (heads,) column of every head

    @classmethod
    def of(cls, table: pd.DataFrame, head: str = "q_head") -> HeadGrid:
        """The places of the rows of a table."""
        layers, row = np.unique(table["layer"].to_numpy(np.int64), return_inverse=True)
        return cls(layers, row, table[head].to_numpy(np.int64))

    def place(self, values: npt.ArrayLike) -> Floats:
        """(layers, heads, …) of values of heads; NaN where there is no head."""
        found = np.asarray(values, np.float64)
        grid = np.full((len(self.layers), self.head.max() + 1, *found.shape[1:]), np.nan)
        grid[self.row, self.head] = found
        return grid

    @property
    def height(self) -> float:
        """The height of a map, in inches."""
        return min(5.5, max(1.7, 0.6 + 0.075 * len(self.layers)))

    @property
    def cell(self) -> float:
        """The smaller side of a cell in a map of a column of a paper, in points."""
        return 72 * min((self.height - 0.5) / len(self.layers), 2.2 / (int(self.head.max()) + 1))

    @property
    def y(self) -> Axis:
        """The axis of layers."""
        step = -(-len(self.layers) // max(2, int(self.height * 4)))
        step = next(size for size in (1, 2, 5, 10, 20, 50, 100) if size >= step)
        rows = list(range(0, len(self.layers), step))
        names = [str(self.layers[row]) for row in rows]
        return Axis("layer", ticks=([float(row) for row in rows], names))


def of_heads(request: Request) -> Drawing:
    """One metric of every head, and how sure its values are."""
    spec, table = request.spec, request.run.table(request.spec.table)
    of_key_heads = spec.table == "key_heads"
    default = spec.y[0] if of_key_heads else main_plasticity(request.run).level
    metric = wanted_metric(request, table, default)
    grid, words = HeadGrid.of(table, "k_head" if of_key_heads else "q_head"), spec.metric(metric)
    values, influences = grid.place(table[metric]), request.run.influences
    half = request.half_widths(table, metric)
    if not request.options.intervals:
        half = np.full(len(table), np.nan)
    sure = bool(np.isfinite(half).any())
    tested = sure and words.signed and not of_key_heads
    tests = Tests.of(table, metric, influences, fade=request.options.fade) if tested else None
    bar = _bar(request, words, values)
    dash = {"s": 5, "color": FAINT, "marker": "_", "linewidths": 0.7}  # beside the dots of tests
    missing = Marked(np.argwhere(np.isnan(values)), None, dash if tests else {})
    types = LayerTypes(layer_types(table), grid.layers)
    marks: list[Mark] = [missing, *layer_gaps(grid.layers), types]
    alpha = None
    if tests:
        alpha = np.ones(values.shape)  # (layers, heads)
        row = np.searchsorted(grid.layers, tests.heads[:, 0])
        alpha[row, tests.heads[:, 1]] = np.where(tests.faded, _PALE, 1.0)
        marks.append(TestMarks(tests, grid.layers, grid.cell, bar.colours))
    x = Axis("key head" if of_key_heads else "query head", whole=True)
    panel = Grid(values, x, grid.y, bar, alpha, marks=marks)
    groups = table["n_groups"] if of_key_heads else quantity_groups(table, metric, influences)
    number, sign = int(np.isnan(values).sum()), "dashes" if tests else "dots"
    short, noun = ("key head",) * 2 if of_key_heads else ("head", "query head")
    width = (
        f"95 % interval of a {short}: ± {two_digits(np.nanmedian(half))} (median)" if sure else None
    )
    notes = [
        f"{number:,} without a value or not captured: {sign}" if number else None,
        width,
        "0: no change from start to end" if metric in _DROPS else None,
    ]
    more = [
        tests.sentence if tests else None,
        gaps_sentence(grid.layers),
        "The strip at the left marks the types of layers." if types.several else None,
    ]
    shown = None if of_key_heads else plasticity_of(metric)
    return Drawing(
        [panel],
        values.size - number,
        notes,
        f"{capitalised(bar.label)} by {short}",
        f"{capitalised(bar.label)} of every {noun}, by layer and head{_meaning(request, metric)}.",
        more,
        np.asarray(groups)[np.isfinite(half)] if sure else None,
        shown or (AT_ONE_POSITION if metric.startswith("ap_") else None),
        noun=noun,
        layout=Layout(height=grid.height),
    )


def _meaning(request: Request, column: str) -> str:
    """The meaning of a column in brackets, without what the caption says about plasticity."""
    meaning, shown = request.spec.metric(column).meaning, plasticity_of(column)
    if shown and column == shown.level:
        meaning = meaning.partition("; ")[2]
    return f" ({_without_settings(request, meaning)})" if meaning else ""


def _bar(request: Request, words: Metric, values: Floats) -> Bar:
    """The colours of a metric: zero is in the middle of signed ones."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if words.signed:
        high = float(np.nanmax(np.abs(values))) or 1.0
        low = -high
    elif words.format == "share" and request.options.range == "unit":
        low, high = 0.0, 1.0
    ends = request.colour_limits(low, high)
    cmap = request.cmap(SIGNED if words.signed else SEQUENTIAL)
    return Bar(request.label(words.column), *ends, cmap)


def _without_settings(request: Request, text: str) -> str:
    """The meaning of a metric, with the value of a setting in place of its name."""
    tokens = request.run.settings.get("distant_from", 256)
    for words, plain in (
        ("attn_far_mass of head_metrics.csv", "attention on distant keys that are no sinks"),
        ("distant_from tokens (256 by default)", f"{tokens:,} tokens"),
        ("p_alpha", "the chosen level"),
    ):
        text = text.replace(words, plain)
    return text


def roles(request: Request) -> Drawing:
    """The role of every head. Heads whose role is unsure have a faded colour."""
    table = request.run.table("roles")
    grid, unsure = HeadGrid.of(table), np.asarray(is_unsure(table), np.bool_)  # (heads,)
    colours = np.array([to_rgb(COLOURS[name]) for name in table["likely_role"]])  # (heads, rgb)
    picture = grid.place(np.where(unsure[:, None], _FADED + (1 - _FADED) * colours, colours))
    number, reasons = int(unsure.sum()), Counter(why_unsure(table)[unsure])
    counts = table["role"].value_counts()
    drawn = [name for name in NAMES if (table["likely_role"] == name).any()]
    entries: list[Entry] = [
        (Patch(color=COLOURS[name]), f"{name} ({counts.get(name, 0):,})") for name in drawn
    ]
    if number:
        pale = Patch(facecolor="#ececec", edgecolor=FAINT, linewidth=0.6)
        entries.append((pale, f"faded: unsure ({number:,})"))
    marks: list[Mark] = []
    if max(picture.shape[:2]) <= _MOST_LINES:
        across, down = ((np.arange(1, size) - 0.5).tolist() for size in picture.shape[:2])
        marks = [CellLines(across, down)]
    marks += layer_gaps(grid.layers)
    panel = Grid(picture, Axis("query head", whole=True), grid.y, marks=marks, entries=entries)
    missing = int(np.isnan(picture[..., 0]).sum())
    notes = [
        f"{missing:,} without known attention or not captured: blank" if missing else None,
        *(f"{reason} in {count(heads, 'head')}" for reason, heads in reasons.items()),
    ]
    meanings = "; ".join(f"{role.name} ({role.meaning})" for role in ROLES)
    return Drawing(
        [panel],
        len(table),
        notes,
        shows="Role of every query head, by layer and head. A head has the first of these roles "
        f"whose score reaches its threshold: {meanings}.",
        more=[
            "Mixed: no score reaches its threshold." if MIXED in drawn else None,
            "The colour of an unsure head, that of its likely role, is faded." if number else None,
            gaps_sentence(grid.layers),
        ],
        layout=Layout(height=grid.height),
    )
