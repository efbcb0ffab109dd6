"""Figures with one point per head: two values of every head, layers, ranks, roles, scores."""

from __future__ import annotations

import textwrap
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.figures.captions import capitalised, plasticity_of, rank_correlation
from attention_plasticity.figures.compose import Layout
from attention_plasticity.figures.request import (
    Drawing,
    Request,
    shown_plasticity,
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
    ORANGE,
    QUIET,
    SEQUENTIAL,
    Axis,
    share_axis,
)
from attention_plasticity.metrics import METRICS
from attention_plasticity.roles import NAMES
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.fidelity import LIMITS, QUANTITIES
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
from attention_plasticity.tables.names import SCORE_WORDS
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count, two_digits

Floats = npt.NDArray[np.float64]

_NAMED = 3  # heads that a caption names
_RANKED = 12  # heads at each end of a ranking
_WORDS = {
    "spearman": "Spearman correlation",
    "kept_50": "attention kept with 50 % of keys",
    "kept_25": "attention kept with 25 % of keys",
    "kept_10": "attention kept with 10 % of keys",
}


def scatter(request: Request) -> Drawing:
    """Two values of every head: a panel per column across that has values."""
    spec, options = request.spec, request.options
    table = request.run.table(spec.table)
    of_heads = spec.table == "head_metrics"
    shown = AT_ONE_POSITION if of_heads else None
    if not spec.y:
        shown = shown_plasticity(request, table)
    ups = spec.y or (shown.level,) if shown else spec.y
    panels, known = [], []
    for x, y in zip(spec.x, cycle(ups), strict=False):
        rows = _both(request, table, x, y)
        if len(rows):
            panels.append(_panel(request, rows, x, y))
            known.append(rows)
    if not known:
        raise ConfigError(f"{request.run.place}: {spec.name}: no head has both values")
    heads, single = max(map(len, known)), len(panels) == 1
    rhos = [rank_correlation(rows["x"], rows["y"]) for rows in known]
    said = [
        rho if single else f"{rho} ({panel.x.label})"
        for rho, panel in zip(rhos, panels, strict=True)
        if rho
    ]
    lines = any(panel.has_intervals for panel in panels)
    half = pd.concat(known)["y_half"]
    wide = heads > MOST_INTERVALS and options.intervals and half.notna().any()
    notes = [
        *said,
        "lines: 95 % intervals over texts" if lines else None,
        f"95 % interval of one head: ± {two_digits(half.median())} (median)" if wide else None,
    ]
    groups = table.reindex(columns=["n_text_groups" if of_heads else "n_groups"])
    return Drawing(
        panels,
        heads,
        notes,
        shows=f"{spec.caption} One point per head{', coloured by layer' if panels[0].bar else ''}.",
        more=[_extremes(known[0]) if single and spec.diagonal else None],
        groups=groups if lines or wide else None,
        shown=shown,
        total=len(table),
        layout=Layout(height=2.5 if single else 2.0, share_y=len(ups) == 1),
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
        spec.diagonal,
    )


def _extremes(rows: pd.DataFrame) -> str:
    """Both means, and the heads that are furthest from the line of equal values."""
    gap = rows["y"] - rows["x"]
    named = []
    for order in (gap, -gap):
        furthest = order[order > 0].sort_values(ascending=False, kind="stable").head(_NAMED)
        heads = rows.loc[furthest.index, HEAD].itertuples(index=False)
        pairs = zip(heads, furthest, strict=True)
        named.append(", ".join(f"L{layer} H{head} ({by:.3f})" for (layer, head), by in pairs))
    return (
        f"The mean over heads is {rows['x'].mean():.3f} across and {rows['y'].mean():.3f} up. "
        f"Furthest above the line: {named[0] or 'none'}; furthest below: {named[1] or 'none'}; L "
        "is the layer, H the query head."
    )


def depth(request: Request) -> Drawing:
    """A metric by layer: every head, and the mean of a layer with its interval."""
    run, metrics = request.run, request.run.head_metrics
    metric = wanted_metric(request, metrics, main_plasticity(metrics).level)
    rows = metrics[metrics[metric].notna()]
    layers = np.unique(rows["layer"].to_numpy(np.int64))
    means = [
        mean_of_heads(rows[rows["layer"] == layer], run.influences, metric) for layer in layers
    ]
    half = np.array([mean_half_width(mean) for mean in means])
    known = np.isfinite(half) & request.options.intervals
    x, y = (rows[name].to_numpy(np.float64) for name in ("layer", metric))
    heads = Line(x, y, None, "one head", FAINT, "none", marker="o", z=1.0)
    look: Any = {"colour": BLUE, "marker": "o", "whiskers": True}
    values = np.array([mean.value for mean in means])
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
    metric = wanted_metric(request, metrics, main_plasticity(metrics).level)
    column = head_column(metrics, run.influences, metric, None)
    order = np.argsort(-column.values, kind="stable")
    number = request.options.limit or _RANKED
    cut = len(order) > 3 * number
    intervals = rank_intervals(column)  # (heads, 2)
    known = bool(np.isfinite(column.errors).any()) and request.options.intervals
    half = half_width(column.errors, column.groups) if known else np.full(len(order), np.nan)
    rows, dots = [], []
    for row, place in enumerate([*order[:number], *order[-number:]] if cut else order):
        layer, head = column.heads[place]
        rank = f"  rank {rank_words(intervals[place])}" if known else ""
        rows.append(f"L{layer} H{head}{rank}")
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
    """Plasticity at one position and rotary phase of the heads of every role."""
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


def fidelity(request: Request) -> Drawing:
    """How well scores without a query rank keys: a panel per measure, a row per score."""
    run, table = request.run, request.run.table("fidelity")
    columns = request.spec.y
    require_columns(table, ["value_norm", *columns], run.path("fidelity"))
    scores = [name for name in SCORE_WORDS if name in set(table["score"])]
    if not scores or not np.isfinite(table[list(columns)].to_numpy(np.float64)).any():
        raise ConfigError(f"{run.path('fidelity')}: has no values of known scores")
    labels = [_in_two(SCORE_WORDS[name]) for name in scores]
    lines = [row - 0.5 for row, name in enumerate(scores) if name in LIMITS][:1]
    panels = []
    for column in columns:
        dots = [
            dot
            for row, name in enumerate(scores)
            for dot in _of_score(request, table, name, row, column)
        ]
        x = Axis(_WORDS[column], lines=True)
        if column != "spearman":
            ticks = ([0.0, 0.5, 1.0], ["0", "0.5", "1"])
            x = Axis(_WORDS[column], -0.02, 1.02, ticks=ticks, lines=True)
        panels.append(DotRows(x, labels, dots, lines, [QUANTITIES[column]], size=3.0))
    heads = len(table[["layer", "k_head"]].drop_duplicates())
    with_values = bool((table["value_norm"] == 1).any())
    known = any(panel.has_intervals for panel in panels)
    notes = [
        f"diamond: mean{' and its 95 % interval over texts' if known else ''}",
        "orange: score times length of the value of a key" if with_values else None,
        "dotted: random order of keys",
    ]
    return Drawing(
        panels,
        heads,
        notes,
        groups=table.reindex(columns=["n_groups"]) if known else None,
        noun="key head",
        layout=Layout(height=0.6 + 0.24 * len(scores), share_y=True),
    )


def _of_score(
    request: Request, table: pd.DataFrame, score: str, row: int, column: str
) -> list[Dots]:
    """The points of a score, alone and times the length of the value."""
    own = table[(table["score"] == score) & table[column].notna()]
    kinds = own.groupby(own["value_norm"].astype(int))[column]
    found = []
    for kind, rows in kinds:
        place = row + (0.0 if kinds.ngroups == 1 else 0.2 * (2 * kind - 1))
        colour = QUIET if score in LIMITS else (BLUE, ORANGE)[kind]
        values = rows.to_numpy(np.float64)
        mean, half = float(values.mean()), np.nan
        recorded = request.run.fidelity_means.get((score, kind), {}).get(column)
        if recorded is not None:
            mean = recorded.value
            half = mean_half_width(recorded)
        half = half if request.options.intervals else np.nan
        found.append(Dots(place, mean, half, values, colour, reach=0.13))
    return found


def _in_two(name: str) -> str:
    """A long name in two lines of similar length."""
    return name if len(name) <= 16 else textwrap.fill(name, len(name) // 2 + 2)
