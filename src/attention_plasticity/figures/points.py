"""Figures with one point per head: two values of every head, layers, ranks, roles, scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.figures.captions import capitalised, plasticity_of, rank_correlation
from attention_plasticity.figures.compose import Layout
from attention_plasticity.figures.draw import (
    Drawing,
    Request,
    wanted_metric,
)
from attention_plasticity.figures.shapes import (
    MOST_INTERVALS,
    DotRows,
    Dots,
    Line,
    Lines,
    Scatter,
    layer_bar,
)
from attention_plasticity.figures.style import (
    BLUE,
    FAINT,
    SEQUENTIAL,
    Axis,
    share_axis,
)
from attention_plasticity.metrics import HEAD, METRICS
from attention_plasticity.roles import NAMES
from attention_plasticity.tables.head_roles import COLOURS, is_unsure
from attention_plasticity.tables.intervals import (
    half_width,
    head_column,
    mean_half_width,
    mean_of_heads,
    rank_intervals,
    rank_words,
)
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, main_plasticity
from attention_plasticity.tables.names import head_name
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count, two_digits

Floats = npt.NDArray[np.float64]

_NAMED = 3  # heads that a caption names
_RANKED = 12  # heads at each end of a ranking


def scatter(request: Request) -> Drawing:
    """Two values of every head, about the line of equal values."""
    spec, options, table = request.spec, request.options, request.run.head_metrics
    rows = _both(request, table, spec.x[0], spec.y[0])
    if rows.empty:
        raise ConfigError(f"{request.run.place}: {spec.name}: no head has both values")
    panel, half = _panel(request, rows, spec.x[0], spec.y[0]), rows["y_half"]
    wide = len(rows) > MOST_INTERVALS and options.intervals and half.notna().any()
    notes = [
        rank_correlation(rows["x"], rows["y"]),
        "lines: 95 % intervals over texts" if panel.has_intervals else None,
        f"95 % interval of one head: ± {two_digits(half.median())} (median)" if wide else None,
    ]
    known = panel.has_intervals or wide
    return Drawing(
        [panel],
        len(rows),
        notes,
        shows=f"{spec.caption} One point per head{', coloured by layer' if panel.bar else ''}.",
        more=[_extremes(rows)],
        groups=table.reindex(columns=["n_text_groups"]) if known else None,
        shown=AT_ONE_POSITION,
        total=len(table),
        layout=Layout(height=2.5),
    )


def _both(request: Request, table: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Heads with both values: layer, q_head, x, y, and half widths of their intervals."""
    found = table[HEAD].copy()
    for axis, name in (("x", x), ("y", y)):
        found[axis] = table.get(name, np.nan)
        found[f"{axis}_half"] = request.half_widths(table, name)
    return found.dropna(subset=["x", "y"])


def _panel(request: Request, rows: pd.DataFrame, x: str, y: str) -> Scatter:
    """The scatter of these heads, coloured by layer."""
    spec, options = request.spec, request.options
    halves = rows[["x_half", "y_half"]].to_numpy(np.float64)
    if not options.intervals:
        halves = np.full(halves.shape, np.nan)
    by_layer = options.color != "none"

    def axis(name: str) -> Axis:
        metric = spec.metric(name)
        unit = options.range == "unit" and metric.format == "share"
        return share_axis(request.label(name), unit, zero=metric.signed)

    return Scatter(
        axis(x),
        axis(y),
        rows[["x", "y"]].to_numpy(np.float64),
        halves,
        rows["layer"].to_numpy(),
        layer_bar(rows["layer"], request.cmap(SEQUENTIAL)) if by_layer else None,
    )


def _extremes(rows: pd.DataFrame) -> str:
    """Both means, and the heads that are furthest from the line of equal values."""
    gap = rows["y"] - rows["x"]
    named = []
    for order in (gap, -gap):
        furthest = order[order > 0].sort_values(ascending=False, kind="stable").head(_NAMED)
        heads = rows.loc[furthest.index, HEAD].itertuples(index=False)
        pairs = zip(heads, furthest, strict=True)
        named.append(", ".join(f"{head_name(*head)} ({by:.3f})" for head, by in pairs))
    return (
        f"The mean over heads is {rows['x'].mean():.3f} across and {rows['y'].mean():.3f} up. "
        f"Furthest above the line: {named[0] or 'none'}; furthest below: {named[1] or 'none'}; L "
        "is the layer, H the query head."
    )


def depth(request: Request) -> Drawing:
    """A metric by layer: every head, and the mean of a layer with its interval."""
    run, metrics = request.run, request.run.head_metrics
    metric = wanted_metric(request, metrics, main_plasticity(run).level)
    rows = metrics[metrics[metric].notna()]
    there = np.unique(rows["layer"].to_numpy(np.int64))
    layers = np.arange(there.min(initial=0), there.max(initial=-1) + 1)  # with missing ones
    values, half = np.full((2, len(layers)), np.nan)
    for layer in there:
        mean_of = mean_of_heads(rows[rows["layer"] == layer], run.influences, metric)
        place = np.searchsorted(layers, layer)
        values[place], half[place] = mean_of.value, mean_half_width(mean_of)
    known = np.isfinite(half) & request.options.intervals
    x, y = (rows[name].to_numpy(np.float64) for name in ("layer", metric))
    heads = Line(x, y, None, "one head", FAINT, "none", marker="o", z=1.0)
    gaps = len(there) < len(layers)  # a layer between two of them is no line
    look: Any = {"colour": BLUE, "whiskers": True, "marker": "o" if gaps else ""}
    half = np.where(known, half, np.nan)
    mean = Line(layers.astype(np.float64), values, half, "mean of a layer", **look)
    label = request.label(metric)
    up = Axis(label, lines=True, zero=request.spec.metric(metric).signed)
    return Drawing(
        [Lines(Axis("layer", whole=True), up, [heads, mean])],
        len(rows),
        ["whiskers: 95 % interval over texts"] if known.any() else [],
        f"{capitalised(label)} by layer",
        f"{capitalised(label)} by layer: every head, and the mean over the heads of a layer.",
        groups=metrics.reindex(columns=["n_text_groups"]) if known.any() else None,
        shown=plasticity_of(metric),
        total=len(metrics),
        layout=Layout(height=2.1),
    )


def ranks(request: Request) -> Drawing:
    """The heads with the largest and the smallest values, with intervals of value and rank."""
    run, metrics = request.run, request.run.head_metrics
    metric = wanted_metric(request, metrics, main_plasticity(run).level)
    column = head_column(metrics, run.influences, metric, None)
    order = np.argsort(-column.values, kind="stable")
    number = request.options.limit or _RANKED
    cut = len(order) > 3 * number
    intervals = rank_intervals(column)  # (heads, 2)
    known = bool(np.isfinite(column.errors).any()) and request.options.intervals
    half = half_width(column.errors, column.groups) if known else np.full(len(order), np.nan)
    rows, dots = [], []
    for row, place in enumerate([*order[:number], *order[-number:]] if cut else order):
        rank = f"  rank {rank_words(intervals[place])}" if known else ""
        rows.append(f"{head_name(*column.heads[place])}{rank}")
        dots.append(Dots(float(row), float(column.values[place]), float(half[place])))
    label = request.label(metric)
    x = Axis(label, lines=True, zero=request.spec.metric(metric).signed)
    notes = [
        f"{len(order) - 2 * number:,} heads between them left out" if cut else None,
        "lines: 95 % intervals; ranks: 95 % interval of each" if known else None,
    ]
    ends = f": the {number} largest and the {number} smallest" if cut else ""
    about_ranks = (
        "The interval of a rank counts the heads that are surely larger and surely smaller: the "
        "difference to each other head on the same texts, corrected for the number of heads "
        "(Bonferroni). Heads whose intervals of ranks overlap are not shown to have this order."
    )
    return Drawing(
        [DotRows(x, rows, dots, [number - 0.5] if cut else [])],
        len(order),
        notes,
        f"Ranks by {label}",
        f"Query heads by {label}, with their ranks{ends}.",
        more=[about_ranks if known else None],
        groups=column.groups if known else None,
        shown=plasticity_of(metric),
        total=len(metrics),
        layout=Layout(height=0.5 + 0.135 * len(rows)),
    )


def by_role(request: Request) -> Drawing:
    """RoPE-aligned plasticity and rotary phase of the heads of every role."""
    run, metrics, roles = request.run, request.run.head_metrics, request.run.table("roles")
    columns = request.spec.y
    seen = metrics.merge(roles[[*HEAD, "role"]], on=HEAD).dropna(subset=list(columns))
    sure = seen[~is_unsure(seen)]
    if sure.empty:
        raise ConfigError(f"{run.place}: {request.spec.name}: no head has a role that is sure")
    members = {name: own for name in NAMES if len(own := sure[sure["role"] == name])}
    labels = [f"{name}\n{count(len(own), 'head')}" for name, own in members.items()]
    panels = []
    for column in columns:
        dots = []
        for row, (name, heads) in enumerate(members.items()):
            mean = mean_of_heads(heads, run.influences, column)
            half = mean_half_width(mean) if request.options.intervals else np.nan
            values = heads[column].to_numpy(np.float64)
            dots.append(Dots(float(row), mean.value, half, values, COLOURS[name], 0.3, 0.2))
        between = (np.arange(1, len(members)) - 0.5).tolist()
        x = Axis(METRICS[column].label, lines=True, zero=METRICS[column].signed)
        panels.append(DotRows(x, labels, dots, between))
    known = any(panel.has_intervals for panel in panels)
    unsure = len(seen) - len(sure)
    notes = [
        f"{count(unsure, 'head')} of unsure role left out" if unsure else None,
        f"diamond: mean over heads{' and its 95 % interval over texts' if known else ''}",
    ]
    return Drawing(
        panels,
        len(sure),
        notes,
        groups=sure.reindex(columns=["n_text_groups"]) if known else None,
        shown=AT_ONE_POSITION,
        total=len(metrics),
        layout=Layout(height=max(1.2, 0.55 + 0.3 * len(members)), columns=2, share_y=True),
    )
