"""Figures over the context: plasticity by query position, by layer, by query and key position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.lines import Line2D

from attention_plasticity.figures.captions import capitalised, range_words
from attention_plasticity.figures.compose import Layout
from attention_plasticity.figures.draw import Drawing, Request
from attention_plasticity.figures.marks import EndLabels, Mark, interval_note
from attention_plasticity.figures.registry import NONE_AT_ONE_POSITION
from attention_plasticity.figures.shapes import Bar, Line, Lines, Spread, Thin, layer_bar
from attention_plasticity.figures.style import (
    BLUE,
    ORANGE,
    PINK,
    QUIET,
    SEQUENTIAL,
    VERMILION,
    Axis,
    layer_shades,
    share_axis,
)
from attention_plasticity.metrics import NEAR
from attention_plasticity.tables.baselines import BASELINES
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    PlasticityColumns,
)
from attention_plasticity.tables.names import head_name
from attention_plasticity.tables.profiles import (
    Profiles,
    bin_geometry,
    heads_with_gaps,
    near_reach,
    over_draws,
    profiles_of,
    shown_cells,
)
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count, two_digits

if TYPE_CHECKING:
    from attention_plasticity.tables.finished_run import FinishedRun

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MANY = 24  # heads above which quantiles are drawn
_NAMED = 3  # heads at each end that have a name
_MOST_BANDS = 6  # heads that are drawn with a band each
_TRENDS = {"rising": BLUE, "falling": VERMILION, "neither": QUIET}
_QUANTILES = (0.05, 0.25, 0.75, 0.95)
_LOOKS = {
    BASELINES["random"]: (ORANGE, (0, (4.5, 1.8)), "the same model with random weights"),
    BASELINES["shuffled"]: (
        PINK,
        (0, (1.2, 1.2)),
        "the same model on texts whose tokens are shuffled",
    ),
}
"""Colour and dashes of the line of a baseline, and what it is."""


def cells_of(request: Request) -> tuple[pd.DataFrame, PlasticityColumns]:
    """The cells of bins, or of buckets, and which plasticity they have."""
    run, asked = request.run, request.options.plasticity
    if asked == "position" and not run.has("bins"):
        raise ConfigError(f"{run.place}: {NONE_AT_ONE_POSITION}")
    return shown_cells(run, asked)


@dataclass(frozen=True)
class Drawn:
    """The profiles of a figure, at the buckets with a value."""

    profiles: Profiles
    shown: PlasticityColumns
    x: Floats  # (heads, buckets)
    axis: Axis

    @classmethod
    def of(cls, run: FinishedRun, shown: PlasticityColumns, at_starts: bool = False) -> Drawn:
        """Points are at the mean positions of queries; `at_starts`: at the starts of buckets."""
        found = profiles_of(run, shown.level)
        if found is None:
            raise ConfigError(f"{run.place}: {NONE_AT_ONE_POSITION}")
        profiles, in_bins = found.known, shown is AT_ONE_POSITION
        geometry = bin_geometry(run.table("bins")) if in_bins else run.geometry
        if from_table := not at_starts and bool(np.isfinite(profiles.position).any()):
            x = profiles.position
        else:
            starts = geometry.starts(profiles.buckets) if geometry else profiles.buckets
            x = np.broadcast_to(starts.astype(np.float64), profiles.values.shape)
        axis = Axis("query bucket", whole=True)
        if from_table or geometry is not None:
            log = geometry is not None and geometry.type == "log"
            axis = Axis("query position (tokens)", scale="doubling" if log else "positions")
        return cls(replace(profiles, position=x), shown, x, axis)

    @property
    def layers(self) -> Ints:
        """(heads,) the layer of every head."""
        return np.array([layer for layer, _ in self.profiles.heads], np.int64)

    @property
    def part(self) -> str:
        """The word for a part of the context."""
        return "bin" if self.shown is AT_ONE_POSITION else "bucket"

    @property
    def texts(self) -> str | None:
        """Numbers of texts behind the bins or buckets; None if they are not known."""
        seen = np.where(np.isnan(self.profiles.values), np.nan, self.profiles.texts)
        known = seen[:, np.isfinite(seen).any(axis=0)]
        if not known.size:
            return None
        return f"{range_words(np.nanmax(known, axis=0).tolist())} texts in a {self.part}"


def _drawing(
    request: Request, drawn: Drawn, panels: Sequence[Lines], references: str | None
) -> Drawing:
    """The panels with the notes of both figures of profiles."""
    profiles, cells = drawn.profiles, cells_of(request)[0]
    gaps, wanted = heads_with_gaps(cells), request.options.intervals
    band = interval_note("band", profiles.mean_half, request.run.eligible_heads)
    one = np.isfinite(profiles.half).any() and wanted
    notes = [
        f"{count(gaps, 'head')} with cells without a value, left as gaps" if gaps else None,
        band if wanted else None,
        f"95 % interval of one head: ± {two_digits(np.nanmedian(profiles.half))} (median)"
        if one
        else None,
        drawn.texts,
    ]
    return Drawing(
        panels,
        len(profiles.heads),
        notes,
        more=[references, first_part(cells, drawn.part)],
        groups=profiles.mean_groups if band and wanted else None,
        shown=drawn.shown,
    )


def plasticity(request: Request) -> Drawing:
    """The mean over heads over a line per head, or over quantiles of many heads."""
    shown = cells_of(request)[1]
    drawn = Drawn.of(request.run, shown, request.at_starts)
    options, heads = request.options, drawn.profiles.heads
    many = len(heads) > _MANY and options.color is None
    below, bar, marks, words = _extremes(drawn) if many else _every_head(request, drawn)
    lines, references = _mean_and_baselines(request, drawn)
    y = share_axis(shown.name, options.range == "unit")
    panel = Lines(drawn.axis, y, [*below, *lines], marks, bar=bar)
    shows = (
        f"{capitalised(shown.name)}, by query position: {words} and the mean over heads (black)."
    )
    drawing = _drawing(request, drawn, [panel], references)
    return replace(drawing, title=capitalised(shown.name), shows=shows, layout=Layout(height=2.1))


Below = tuple[list[Line | Spread | Thin], Bar | None, list[Mark], str]
"""What is below the lines of means, its colour bar, its marks, and its words in the caption."""


def _extremes(drawn: Drawn) -> Below:
    """Quantiles over heads, and the heads with the largest and the smallest mean by their names."""
    profiles = drawn.profiles
    level = np.nanmean(profiles.values, axis=1)  # (heads,)
    order = np.argsort(-level, kind="stable")
    order = order[np.isfinite(level[order])]
    ends = {VERMILION: order[:_NAMED], BLUE: order[-_NAMED:]}
    lines: list[Line | Spread | Thin] = [*_quantiles(profiles)]
    names: list[tuple[float, str, str]] = []
    for colour, rows in ends.items():
        for row in rows.tolist():
            y = profiles.values[row]
            lines.append(Line(drawn.x[row], y, colour=colour, width=0.7, z=1.9))
            last = float(y[np.flatnonzero(~np.isnan(y))[-1]])
            names.append((last, head_name(*profiles.heads[row]), colour))
    words = (
        "bands of the middle 50 % and the middle 90 % of heads, thin lines for the "
        f"{_NAMED} heads with the largest and the {_NAMED} with the smallest mean (L is the layer, "
        "H the query head),"
    )
    return lines, None, [EndLabels(names)], words


def _every_head(request: Request, drawn: Drawn) -> Below:
    """A line per head, with intervals if heads are few."""
    profiles, options = drawn.profiles, request.options
    color = options.color or ("layer" if len(set(drawn.layers)) > 1 else "none")
    bar = layer_bar(drawn.layers, request.cmap(SEQUENTIAL)) if color == "layer" else None
    colours, named = _colours(request, drawn, "layer" if bar else color)
    rows = list(zip(drawn.x, profiles.values, profiles.half, colours, strict=True))
    paths = [np.column_stack([x[~np.isnan(x)], y[~np.isnan(x)]]) for x, y, _, _ in rows]
    entries = [
        (Line2D([], [], color=colour, linewidth=1.0, alpha=0.8), name) for name, colour in named
    ]
    few = options.intervals and len(rows) <= _MOST_BANDS
    bands = [Line(x, y, half, colour=c, width=0.6, z=1.5) for x, y, half, c in rows if few]
    thin = Thin(paths, colours, 0.6, min(0.7, 0.3 + 6.0 / len(rows)), entries)
    by = {"layer": ", coloured by layer,", "trend": ", coloured by trend with position,"}
    words = f"one line per head{by.get(color, '') if bar or color == 'trend' else ''}"
    return [thin, *bands], bar, [], words


def _quantiles(profiles: Profiles) -> list[Spread]:
    """Bands of the middle half and of nine tenths of the heads."""
    x, (low, q1, q3, high) = profiles.mean_position, profiles.spread(_QUANTILES)  # (buckets,)
    return [
        Spread(x, q1, q3, "middle 50 % of heads", 0.3),
        Spread(x, low, high, "middle 90 % of heads", 0.14),
    ]


def _colours(request: Request, drawn: Drawn, color: str) -> tuple[list[Any], list[tuple[str, str]]]:
    """The colour of every head, and the words and colours of the legend."""
    layers = drawn.layers
    if color == "layer":
        shades = layer_shades(layers, request.cmap(SEQUENTIAL))
        return list(map(tuple, shades.to_rgba(layers))), []
    if color == "trend":
        threshold = request.options.trend_threshold
        trends = [trend_of(row, threshold) for row in drawn.profiles.values]
        words = [(f"{name} ({trends.count(name):,})", _TRENDS[name]) for name in _TRENDS]
        return [_TRENDS[trend] for trend in trends], words
    return [BLUE] * len(layers), [("one head", BLUE)]


def profile(request: Request) -> Drawing:
    """The mean over heads with its interval, and the spread over heads."""
    shown = cells_of(request)[1]
    drawn = Drawn.of(request.run, shown, request.at_starts)
    lines, references = _mean_and_baselines(request, drawn)
    y = share_axis(shown.name, request.options.range == "unit")
    near = _at_equal_distances(request, drawn)
    change = Lines(drawn.axis, share_axis("mean over heads"), [*lines[:1], *near])
    panel = Lines(drawn.axis, y, [*_quantiles(drawn.profiles), *lines])
    shows = (
        f"{capitalised(shown.name)}, by query position: mean over heads, with bands of the middle "
        "50 % and the middle 90 % of heads. The lower panel has the mean alone, on an axis of its "
        "own."
    )
    if near:
        shows += (
            f" The second line is the mean with keys at most {near[0].reach:,} tokens before the "
            "query: the same distances at all positions. The first line falls also because later "
            "queries have farther keys."
        )
    return replace(
        _drawing(request, drawn, [panel, change], references),
        title=f"{capitalised(shown.name)}, spread over heads",
        shows=shows,
        layout=Layout(height=1.55, columns=1, share_x=True),
    )


@dataclass(frozen=True)
class _NearLine(Line):
    """The mean over heads at equal distances."""

    reach: int = 0  # tokens


def _at_equal_distances(request: Request, drawn: Drawn) -> list[_NearLine]:
    """The mean over heads with keys at the distances of the first fifth alone, if it is known."""
    run = request.run
    near = profiles_of(run, NEAR) if drawn.part == "bin" else None
    reach = near_reach(run.table("bins"), run.context) if near else None
    if near is None or reach is None:
        return []
    near, all_keys = near.known, drawn.profiles
    places = np.searchsorted(all_keys.buckets, near.buckets)
    x = all_keys.mean_position[places]
    half = near.mean_half if request.options.intervals else None
    label = "the same, keys at equal distances"
    return [_NearLine(x, near.mean, half, label, BLUE, (0, (4.5, 1.8)), reach=reach)]


def _mean_and_baselines(request: Request, drawn: Drawn) -> tuple[list[Line], str | None]:
    """The lines of the mean and of the baselines, and a sentence about the baselines."""
    wanted, profiles = request.options.intervals, drawn.profiles
    half = profiles.mean_half if wanted else None
    mean = Line(profiles.mean_position, profiles.mean, half, "mean over heads", halo=True)
    lines: list[Line] = [mean]
    parts: list[str] = []
    baselines = request.run.baselines if request.options.baselines else {}
    for name, draws in baselines.items():
        if drawn.part == "bin" and not all(run.has("bins") for run in draws):
            continue
        own = [Drawn.of(run, drawn.shown).profiles for run in draws]
        found = over_draws(own)
        level, reach = np.array([(one.value, one.half) for one in found]).T
        colour, dashes, meaning = _LOOKS[name]
        x = own[0].mean_position
        lines.append(Line(x, level, reach if wanted else None, name, colour, dashes))
        numbers = [count(draws[0].texts["count"], "text")] if draws[0].texts.get("count") else []
        numbers += [f"mean of {count(len(draws), 'draw')}"] if len(draws) > 1 else []
        parts.append(f"{name}, {meaning}" + (f" ({', '.join(numbers)})" if numbers else ""))
    return lines, f"Reference lines: {'; '.join(parts)}." if parts else None


def first_part(cells: pd.DataFrame, part: str) -> str | None:
    """Why the first bin or bucket has no value; None if it has one. `part` is the word for it."""
    seen = cells[cells["plasticity"].notna()]
    if seen["q_bucket"].min() <= seen["k_bucket"].min():
        return None
    return f"The first {part} has no value, because no {part} of keys comes before it."


def trend_of(values: Floats, threshold: float) -> str:
    """`rising`, `falling` or `neither`, by the Spearman correlation with the bucket order."""
    seen = values[~np.isnan(values)]
    if len(seen) < 3 or np.ptp(seen) == 0:
        return "neither"
    ranks = pd.Series(seen).rank()
    correlation = float(np.corrcoef(np.arange(len(seen)), ranks)[0, 1])
    if abs(correlation) < threshold:
        return "neither"
    return "rising" if correlation > 0 else "falling"
