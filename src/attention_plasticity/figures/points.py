"""Figures with one point per head: two values of every head, roles, ranks, scores of keys."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.figures.captions import (
    capitalised,
    column_label,
    interval_sentence,
    phase_note,
    plasticity_of,
    rank_correlation,
)
from attention_plasticity.figures.shapes import (
    MOST_INTERVALS,
    DotRows,
    Dots,
    Layout,
    Line,
    Lines,
    Scatter,
    layer_bar,
)
from attention_plasticity.figures.spec import NONE_AT_ONE_POSITION, Drawing, Request, wanted_metric
from attention_plasticity.figures.style import (
    BLUE,
    FAINT,
    ORANGE,
    QUIET,
    SEQUENTIAL,
    Axis,
    share_axis,
)
from attention_plasticity.metrics import METRICS, PHASE
from attention_plasticity.roles import NAMES
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.fidelity import LIMITS, QUANTITIES
from attention_plasticity.tables.head_roles import COLOURS, is_unsure, require_roles
from attention_plasticity.tables.intervals import (
    half_width,
    head_column,
    head_half_width,
    mean_half_width,
    mean_of_heads,
    rank_intervals,
    rank_words,
    row_half_width,
)
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity,
)
from attention_plasticity.tables.names import FIDELITY_CAUTION, SCORE_WORDS
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

Floats = npt.NDArray[np.float64]

_NAMED = 3  # heads that a caption names
_RANKED = 12  # heads at each end of a ranking
_WORDS = {
    "spearman": "Spearman correlation",
    "kept_50": "attention kept with 50 % of keys",
    "kept_25": "attention kept with 25 % of keys",
    "kept_10": "attention kept with 10 % of keys",
}


@dataclass(frozen=True)
class Points:
    """Two values of every head that has both, with half widths of their intervals."""

    table: pd.DataFrame  # layer, q_head, x, y, x_half, y_half

    @classmethod
    def of(cls, request: Request, table: pd.DataFrame, x: str, y: str) -> Points:
        """The heads of a table with both columns."""
        found = table[HEAD].copy()
        for axis, name in (("x", x), ("y", y)):
            found[axis] = table.get(name, np.nan)
            found[f"{axis}_half"] = _half(request, table, name)
        return cls(found.dropna(subset=["x", "y"]))

    def panel(self, request: Request, x: Axis, y: Axis, **more: object) -> Scatter:
        """The scatter of these heads, coloured by layer."""
        table, names = self.table, ["x", "y"]
        halves = table[[f"{name}_half" for name in names]].to_numpy(np.float64)
        if not request.options.intervals:
            halves = np.full(halves.shape, np.nan)
        by_layer = request.options.color != "none"
        bar = layer_bar(table["layer"], request.cmap(SEQUENTIAL)) if by_layer else None
        places = table[names].to_numpy(np.float64)
        scatter = Scatter(x, y, places, halves, table["layer"].to_numpy(), bar)
        return replace(scatter, **more)  # type: ignore[arg-type]

    @property
    def correlation(self) -> str | None:
        """Spearman's correlation over heads."""
        return rank_correlation(self.table["x"], self.table["y"])

    def named(self, gap: pd.Series[float]) -> str:
        """The heads with the largest values of `gap`: `L3 H2 (0.213), L0 H1 (0.180)`."""
        largest = gap.sort_values(ascending=False, kind="stable").head(_NAMED)
        rows = self.table.loc[largest.index]
        pairs = zip(rows["layer"], rows["q_head"], largest, strict=True)
        return ", ".join(f"L{layer} H{head} ({value:.3f})" for layer, head, value in pairs)


def _half(request: Request, table: pd.DataFrame, name: str) -> Floats:
    """(heads,) half widths of a column; NaN where they are not known."""
    if request.spec.table == "head_metrics" or name in METRICS:
        return head_half_width(table, name, request.run.influences)
    return row_half_width(table, name)


def _scatter_words(
    request: Request,
    points: Sequence[Points],
    panels: Sequence[Scatter],
    total: int,
    extra: Sequence[str | None] = (),
    sentences: Sequence[str | None] = (),
    shown: PlasticityColumns | None = AT_ONE_POSITION,
) -> Drawing:
    """The words of a figure of points, from its entry."""
    heads = max(len(one.table) for one in points)
    if not heads:
        raise ConfigError(f"{request.run.place}: {request.spec.name}: no head has both values")
    rhos = [one.correlation for one in points]
    titles = [f" ({panel.title})" if panel.title else "" for panel in panels]
    said = [f"{rho}{title}" for rho, title in zip(rhos, titles, strict=True) if rho]
    lines = any(panel.has_intervals for panel in panels)
    half = np.concatenate([one.table["y_half"].to_numpy(np.float64) for one in points])
    wide = heads > MOST_INTERVALS and np.isfinite(half).any() and request.options.intervals
    notes = [
        request.heads(heads, total),
        *said,
        *extra,
        "lines: 95 % intervals over texts" if lines else None,
        f"95 % interval of one head: ± {np.nanmedian(half):.3f} (median)" if wide else None,
        phase_note(shown) if shown else None,
    ]
    colour = ", coloured by layer" if panels[0].bar else ""
    details = [
        *sentences,
        f"{'; '.join(said)} over these heads." if said else None,
        interval_sentence("Lines are 95 % intervals,", _groups(request)) if lines else None,
    ]
    shows = f"{request.spec.caption} One point per head{colour}."
    words = request.words(request.spec.title, notes, shows, heads, details, shown)
    single = len(panels) == 1
    layout = Layout(height=2.5 if single else 2.0, share_y=not single)
    return Drawing(panels, words, layout)


def _groups(request: Request) -> Floats:
    table = request.run.table(request.spec.table)
    name = "n_text_groups" if request.spec.table == "head_metrics" else "n_groups"
    return table.reindex(columns=[name])[name].to_numpy(np.float64)


def equal_values(request: Request) -> Drawing:
    """Two plasticities of every head, with the line of equal values."""
    metrics, spec = request.run.head_metrics, request.spec
    [x], [y] = spec.x, spec.y
    points = Points.of(request, metrics, x, y)
    unit = request.options.range == "unit"
    axes = (share_axis(column_label(name), unit) for name in (x, y))
    panel = points.panel(request, *axes, diagonal=True)
    gap = points.table["x"] - points.table["y"]
    sentences = [
        f"The mean over heads is {points.table['x'].mean():.3f} across and "
        f"{points.table['y'].mean():.3f} up."
    ]
    if PHASE in metrics and spec.name == "phase":
        phase = metrics.loc[points.table.index, PHASE]
        sentences = [
            "The distance below the line of equal values is the rotary phase: what the rotation "
            f"of RoPE inside a bin adds. It is {phase.mean():.3f} in the mean over heads.",
            f"The largest: {points.named(phase)}; L is the layer, H the query head.",
        ]
        extra = [f"rotary phase: {phase.mean():.3f} in the mean over heads"]
    else:
        sentences.append(
            f"Furthest above the line: {points.named(-gap)}; furthest below: {points.named(gap)}; "
            "L is the layer, H the query head."
        )
        extra = []
    return _scatter_words(request, [points], [panel], len(metrics), extra, sentences)


def predictability(request: Request) -> Drawing:
    """Variance from position, as captured and before RoPE, against plasticity."""
    metrics = request.run.head_metrics
    shown = main_plasticity(metrics)
    if request.options.plasticity == "position" and shown is OVER_BUCKETS:
        raise ConfigError(f"{request.run.place}: {NONE_AT_ONE_POSITION}")
    shown = OVER_BUCKETS if request.options.plasticity == "bucket" else shown
    names = [name for name in request.spec.x if name in metrics and metrics[name].notna().any()]
    if "q_R2_total" not in names:
        names = ["q_R2_pos", *names]
    titles = {"q_R2_unrotated": "before RoPE"}
    points = [Points.of(request, metrics, name, shown.level) for name in names]
    several = len(names) > 1
    panels = [
        one.panel(
            request,
            Axis("variance from position (R²)", lines=True),
            share_axis(shown.name, request.options.range == "unit"),
            title=titles.get(name, "as captured") if several else "",
        )
        for name, one in zip(names, points, strict=True)
    ]
    both = (
        "As captured (left), it is mostly how far RoPE turns the mean query; before RoPE (right), "
        "how far the content of queries drifts with position."
    )
    return _scatter_words(
        request, points, panels, len(metrics), sentences=[both if several else None], shown=shown
    )


def drift(request: Request) -> Drawing:
    """Drift of queries against drift of keys, before and after RoPE."""
    table, spec = request.run.table("drift"), request.spec
    titles = ("before RoPE", "after RoPE")
    points, panels = [], []
    for x, y, title in zip(spec.x, spec.y, titles, strict=True):
        own = Points.of(request, table, x, y)
        if len(own.table):
            points.append(own)
            least = min(-0.1, float(own.table[["x", "y"]].to_numpy(np.float64).min()) - 0.02)
            ends: Any = {"low": least, "high": 1.02, "lines": True, "zero": True}
            axes = Axis("drift of queries", **ends), Axis("drift of keys", **ends)
            panels.append(own.panel(request, *axes, title=title, diagonal=True))
    sentence = (
        "Drift is the correlation with position of the projection on the axis of the drift. The "
        "axis comes from the other groups of texts, so that it is 0 on average without drift."
    )
    note = "drift: correlation with position along an axis from other texts"
    return _scatter_words(request, points, panels, len(table), [note], [sentence], None)


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
    values = np.array([mean.value for mean in means])
    x = layers.astype(np.float64)
    heads = Line(
        rows["layer"].to_numpy(np.float64),
        rows[metric].to_numpy(np.float64),
        None,
        "one head",
        FAINT,
        "none",
        marker="o",
        z=1.0,
    )
    mean = Line(
        x, values, np.where(known, half, np.nan), "mean of a layer", BLUE, marker="o", whiskers=True
    )
    label = column_label(metric)
    y = Axis(label, lines=True, zero=METRICS[metric].signed if metric in METRICS else False)
    note = "whiskers: 95 % interval over texts" if known.any() else None
    shows = f"{capitalised(label)} by layer: every head, and the mean over the heads of a layer."
    details = [
        interval_sentence("Whiskers are 95 % intervals of the mean,", _groups(request))
        if note
        else None
    ]
    shown = plasticity_of(metric)
    notes = [request.heads(len(rows), len(metrics)), note, phase_note(shown) if shown else None]
    words = request.words(f"{capitalised(label)} by layer", notes, shows, len(rows), details, shown)
    panel = Lines(Axis("layer", whole=True), y, [heads, mean])
    return Drawing([panel], words, Layout(height=2.1))


def ranks(request: Request) -> Drawing:
    """The heads with the largest and the smallest values, with intervals of value and rank."""
    run, metrics = request.run, request.run.head_metrics
    metric = wanted_metric(request, metrics, main_plasticity(metrics).level)
    column = head_column(metrics, run.influences, metric, None)
    order = np.argsort(-column.values, kind="stable")
    number = request.options.limit or _RANKED
    cut = len(order) > 3 * number
    shown_heads = [*order[:number], *order[-number:]] if cut else list(order)
    intervals = rank_intervals(column)  # (heads, 2)
    known = bool(np.isfinite(column.errors).any()) and request.options.intervals
    half = half_width(column.errors, column.groups)
    rows, dots = [], []
    for row, place in enumerate(shown_heads):
        layer, head = column.heads[place]
        rank = f"  rank {rank_words(intervals[place])}" if known else ""
        rows.append(f"L{layer} H{head}{rank}")
        reach = half[place] if known else np.nan
        dots.append(Dots(float(row), np.empty(0), float(column.values[place]), float(reach)))
    label, shown = column_label(metric), plasticity_of(metric)
    x = Axis(label, lines=True, zero=METRICS[metric].signed if metric in METRICS else False)
    lines = [number - 0.5] if cut else []
    panel = DotRows(x, rows, dots, lines)
    left_out = f"{len(order) - 2 * number:,} heads between them left out" if cut else None
    notes = [
        request.heads(len(order), len(metrics)),
        left_out,
        "lines: 95 % intervals; ranks: 95 % interval of each" if known else None,
        phase_note(shown) if shown else None,
    ]
    shows = (
        f"Query heads by {label}, with their ranks: the {number} largest and the {number} smallest."
        if cut
        else f"Query heads by {label}, with their ranks."
    )
    details = [
        interval_sentence("Lines are 95 % intervals,", column.groups) if known else None,
        "The interval of a rank counts the heads that are surely larger and surely smaller: the "
        "difference to each other head on the same texts, corrected for the number of heads "
        "(Bonferroni). Heads whose intervals of ranks overlap are not shown to have this order."
        if known
        else None,
    ]
    words = request.words(f"Ranks by {label}", notes, shows, len(order), details, shown)
    return Drawing([panel], words, Layout(height=0.5 + 0.135 * len(rows)))


def by_role(request: Request) -> Drawing:
    """Plasticity at one position and rotary phase of the heads of every role."""
    run, metrics, roles = request.run, request.run.head_metrics, request.run.table("roles")
    require_roles(roles, run.path("roles"))
    joined = metrics.merge(roles[[*HEAD, "role"]], on=HEAD)
    columns = request.spec.y
    seen = joined[joined[list(columns)].notna().all(axis=1)]
    unsure, sure = int(is_unsure(seen).sum()), seen[~is_unsure(seen)]
    if sure.empty:
        raise ConfigError(f"{run.place}: {request.spec.name}: no head has a role that is sure")
    names = [name for name in NAMES if (sure["role"] == name).any()]
    members = [sure[sure["role"] == name] for name in names]
    labels = [
        f"{name}\n{count(len(part), 'head')}" for name, part in zip(names, members, strict=True)
    ]
    panels = []
    for column in columns:
        dots = []
        for row, (name, heads) in enumerate(zip(names, members, strict=True)):
            mean = mean_of_heads(heads, run.influences, column)
            half = mean_half_width(mean) if request.options.intervals else np.nan
            values = heads[column].to_numpy(np.float64)
            dots.append(Dots(float(row), values, mean.value, half, COLOURS[name], 0.3, 0.2))
        between = (np.arange(1, len(names)) - 0.5).tolist()
        x = Axis(METRICS[column].label, lines=True, zero=METRICS[column].signed)
        panels.append(DotRows(x, labels, dots, between))
    known = any(panel.has_intervals for panel in panels)
    left_out = f"{count(unsure, 'head')} of unsure role left out" if unsure else None
    notes = [
        request.heads(len(sure), len(metrics)),
        left_out,
        f"diamond: mean over heads{' and its 95 % interval over texts' if known else ''}",
    ]
    shows = (
        "Plasticity at one position (left) and rotary phase (right) of query heads by their role, "
        "one point per head. Points of a row are spread up and down only so that they can be told "
        "apart. Diamonds below the points: mean over the heads of a role."
    )
    groups = sure.reindex(columns=["n_text_groups"])["n_text_groups"]
    details = [
        f"{capitalised(left_out)}." if left_out else None,
        interval_sentence("Lines are 95 % intervals of the means,", groups) if known else None,
    ]
    words = request.words("Plasticity by role", notes, shows, len(sure), details, AT_ONE_POSITION)
    layout = Layout(height=max(1.2, 0.55 + 0.3 * len(names)), columns=2, share_y=True)
    return Drawing(panels, words, layout)


def fidelity(request: Request) -> Drawing:
    """How well scores without a query rank keys: a panel per measure, a row per score."""
    run, table = request.run, request.run.table("fidelity")
    columns = request.spec.y
    require_columns(table, ["value_norm", *columns], run.path("fidelity"))
    present = set(table["score"])
    scores = [name for name in SCORE_WORDS if name in present]
    if not scores or not np.isfinite(table[list(columns)].to_numpy(np.float64)).any():
        raise ConfigError(f"{run.path('fidelity')}: has no values of known scores")
    labels = [_in_two(SCORE_WORDS[name]) for name in scores]
    first = next((row for row, name in enumerate(scores) if name in LIMITS), None)
    lines = [] if first is None else [first - 0.5]
    panels = []
    for column in columns:
        dots = [
            dot
            for row, name in enumerate(scores)
            for dot in _of_score(request, table, name, row, column)
        ]
        ticks = ([0.0, 0.5, 1.0], ["0", "0.5", "1"])
        share = column != "spearman"
        x = Axis(_WORDS[column], -0.02, 1.02, ticks=ticks) if share else Axis(_WORDS[column])
        x = replace(x, lines=True)
        panels.append(DotRows(x, labels, dots, lines, [QUANTITIES[column]], size=3.0))
    heads = len(table[["layer", "k_head"]].drop_duplicates())
    with_values = bool((table["value_norm"] == 1).any())
    known = any(panel.has_intervals for panel in panels)
    notes = [
        request.heads(heads, noun="key head"),
        f"diamond: mean{' and its 95 % interval over texts' if known else ''}",
        "orange: score times length of the value" if with_values else None,
        "dotted: random order of keys",
    ]
    groups = table.reindex(columns=["n_groups"])["n_groups"]
    details = [
        "The last two rows know the queries of the text: the best fixed ranking of its keys, and "
        "the best keys for each query. Points of a row are spread up and down only so that they "
        "can be told apart. Diamonds: mean over key heads. Dotted lines: a random order of keys.",
        FIDELITY_CAUTION,
        "Orange: the score times the length of the value of a key." if with_values else None,
        interval_sentence("Lines are 95 % intervals of the means,", groups) if known else None,
    ]
    words = request.words(
        request.spec.title, notes, request.spec.caption, heads, details, noun="key head"
    )
    layout = Layout(height=0.6 + 0.24 * len(scores), columns=2, share_y=True)
    return Drawing(panels, words, layout)


def _of_score(
    request: Request, table: pd.DataFrame, score: str, row: int, column: str
) -> list[Dots]:
    """The points of a score, alone and times the length of the value."""
    own = table[table["score"] == score]
    kinds = sorted(set(own["value_norm"].astype(int)))
    found = []
    for kind in kinds:
        values = own.loc[own["value_norm"] == kind, column].dropna().to_numpy(np.float64)
        if not len(values):
            continue
        place = row + (0.0 if len(kinds) == 1 else 0.2 * (2 * kind - 1))
        colour = QUIET if score in LIMITS else (BLUE, ORANGE)[kind]
        mean, half = float(values.mean()), np.nan
        recorded = request.run.fidelity_means.get((score, kind), {}).get(column)
        if recorded is not None:
            mean = recorded.value
            half = float(half_width(recorded.standard_error, recorded.groups))
        half = half if request.options.intervals else np.nan
        found.append(Dots(place, values, mean, half, colour, reach=0.13))
    return found


def _in_two(name: str) -> str:
    """A long name in two lines of similar length."""
    return name if len(name) <= 16 else textwrap.fill(name, len(name) // 2 + 2)
