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
from attention_plasticity.figures.marks import interval_note
from attention_plasticity.figures.request import Drawing, Request
from attention_plasticity.figures.shapes import Line, Lines, Spread, Thin, layer_bar
from attention_plasticity.figures.spec import NONE_AT_ONE_POSITION
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
from attention_plasticity.metrics import NEAR_BIN_QUANTITY
from attention_plasticity.tables.baselines import BASELINES, mean_of_draws
from attention_plasticity.tables.bin_cells import bin_cells, bin_geometry, near_reach
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.intervals import bucket_errors, bucket_rows, mean_of_buckets
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity,
)
from attention_plasticity.tables.profiles import HEAD, head_profiles, heads_with_gaps
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count, two_digits

if TYPE_CHECKING:
    from attention_plasticity.tables.finished_run import FinishedRun

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
    """The table of bins, or of buckets, and which plasticity it has."""
    run, asked = request.run, request.options.plasticity
    if asked == "position" and not run.has("bins"):
        raise ConfigError(f"{run.place}: {NONE_AT_ONE_POSITION}")
    in_bins = asked == "position" or (asked is None and run.has("bins"))
    if in_bins and asked is None and run.has("head_metrics"):
        in_bins = main_plasticity(run.head_metrics) is AT_ONE_POSITION
    table = run.table("bins" if in_bins else "bucket_plasticity")
    require_values(table, "plasticity", run.path("bins" if in_bins else "bucket_plasticity"))
    return table, AT_ONE_POSITION if in_bins else OVER_BUCKETS


@dataclass(frozen=True)
class Profiles:
    """Plasticity per head and bin or query bucket, where a head has a value."""

    shown: PlasticityColumns
    heads: pd.DataFrame  # layer and query head
    x: Floats  # (heads, buckets)
    values: Floats  # (heads, buckets)
    half: Floats  # (heads, buckets) half widths; NaN if not known. Buckets have no errors
    mean_half: Floats  # (buckets,)
    groups: Floats  # (buckets,) groups of texts behind the mean
    buckets: Ints  # (buckets,) their numbers
    cells: pd.DataFrame
    axis: Axis

    @classmethod
    def of(cls, run: FinishedRun, shown: PlasticityColumns, at_starts: bool = False) -> Profiles:
        """The profiles of bins or of buckets."""
        in_bins = shown is AT_ONE_POSITION
        table = run.table("bins" if in_bins else "bucket_plasticity")
        geometry = bin_geometry(table) if in_bins else run.geometry
        cells = bin_cells(table, run.pair_sampling)
        profiles = head_profiles(cells)
        found = _by_head(profiles, "plasticity").dropna(axis="columns", how="all")
        buckets, values = found.columns.to_numpy(), found.to_numpy(np.float64)
        from_table = "q_position" in profiles and not at_starts
        if from_table:
            x = _by_head(profiles, "q_position")[found.columns].to_numpy(np.float64)
        else:
            starts = geometry.starts(buckets) if geometry else buckets
            x = np.broadcast_to(starts.astype(np.float64), values.shape)
        half = np.full(values.shape, np.nan)
        mean_half, groups = np.full((2, len(buckets)), np.nan)
        if run.influences is not None and in_bins:
            errors = bucket_rows(run.influences).drop(columns="value")
            drawn = profiles[[*HEAD, "q_bucket"]].assign(value=profiles["plasticity"])
            rows = drawn.merge(errors, on=[*HEAD, "q_bucket"], how="left")
            half = _by_head(rows, "half_width")[buckets].to_numpy(np.float64)
            mean = mean_of_buckets(rows, run.eligible_heads).set_index("q_bucket").reindex(buckets)
            mean_half, groups = mean[["half_width", "n_groups"]].to_numpy(np.float64).T
        axis = Axis("query bucket", whole=True)
        if from_table or geometry is not None:
            log = geometry is not None and geometry.type == "log"
            axis = Axis("query position (tokens)", scale="doubling" if log else "positions")
        heads = found.index.to_frame(index=False)
        return cls(shown, heads, x, values, half, mean_half, groups, buckets, cells, axis)

    @property
    def mean_x(self) -> Floats:
        """(buckets,) mean position of the heads with a value."""
        return _column_mean(self.x, ~np.isnan(self.values))

    @property
    def mean(self) -> Floats:
        """(buckets,) mean over the heads with a value."""
        return _column_mean(self.values, ~np.isnan(self.values))

    @property
    def part(self) -> str:
        """The word for a part of the context."""
        return "bin" if self.shown is AT_ONE_POSITION else "bucket"

    @property
    def texts(self) -> str | None:
        """Numbers of texts behind the bins or buckets; None if they are not known."""
        if "n_texts" not in self.cells:
            return None
        drawn = self.cells[self.cells["plasticity"].notna()]
        numbers = drawn.groupby("q_bucket")["n_texts"].max().dropna()
        return f"{range_words(numbers.tolist())} texts in a {self.part}" if len(numbers) else None


def _drawing(
    request: Request, profiles: Profiles, panels: Sequence[Lines], references: str | None
) -> Drawing:
    """The panels with the notes of both figures of profiles."""
    gaps, wanted = heads_with_gaps(profiles.cells), request.options.intervals
    band = interval_note("band", profiles.mean_half, request.run.eligible_heads)
    one = np.isfinite(profiles.half).any() and wanted
    notes = [
        f"{count(gaps, 'head')} with cells without a value, left as gaps" if gaps else None,
        band if wanted else None,
        f"95 % interval of one head: ± {two_digits(np.nanmedian(profiles.half))} (median)"
        if one
        else None,
        profiles.texts,
    ]
    return Drawing(
        panels,
        len(profiles.heads),
        notes,
        more=[references, first_part(profiles.cells, profiles.part)],
        groups=profiles.groups if band and wanted else None,
        shown=profiles.shown,
    )


def plasticity(request: Request) -> Drawing:
    """One line per head, and the mean over heads with its interval."""
    shown = cells_of(request)[1]
    profiles = Profiles.of(request.run, shown, request.at_starts)
    options, heads = request.options, profiles.heads
    color = options.color or ("layer" if heads["layer"].nunique() > 1 else "none")
    bar = layer_bar(heads["layer"], request.cmap(SEQUENTIAL)) if color == "layer" else None
    colours, names = _colours(request, profiles, "layer" if bar else color)
    known = ~np.isnan(profiles.x)
    paths = [
        np.column_stack([x[seen], y[seen]])
        for x, y, seen in zip(profiles.x, profiles.values, known, strict=True)
    ]
    alpha = options.alpha or min(0.7, 0.3 + 6.0 / len(heads))
    entries = [
        (Line2D([], [], color=colour, linewidth=1.0, alpha=0.8), name) for name, colour in names
    ]
    few = options.intervals and len(heads) <= _MOST_BANDS
    own = zip(profiles.x, profiles.values, profiles.half, colours, strict=True)
    bands = [
        Line(x, y, half, colour=colour, width=options.line_width, z=1.5)
        for x, y, half, colour in (own if few else ())
    ]
    lines, references = _mean_and_baselines(request, profiles)
    thin = Thin(paths, colours, options.line_width, alpha, entries)
    y = share_axis(shown.name, options.range == "unit")
    panel = Lines(profiles.axis, y, [thin, *bands, *lines], bar=bar)
    by = {"layer": ", coloured by layer,", "trend": ", coloured by trend with position,"}
    shows = (
        f"{capitalised(shown.name)}, by query position: one line per head"
        f"{by.get(color, '') if bar or color == 'trend' else ''} and the mean over heads (black)."
    )
    drawing = _drawing(request, profiles, [panel], references)
    return replace(drawing, title=capitalised(shown.name), shows=shows, layout=Layout(height=2.1))


def _colours(
    request: Request, profiles: Profiles, color: str
) -> tuple[list[Any], list[tuple[str, str]]]:
    """The colour of every head, and the words and colours of the legend."""
    layers = profiles.heads["layer"].to_numpy()
    if color == "layer":
        shades = layer_shades(layers, request.cmap(SEQUENTIAL))
        return list(map(tuple, shades.to_rgba(layers))), []
    if color == "trend":
        threshold = request.options.trend_threshold
        trends = [trend_of(row, threshold) for row in profiles.values]
        words = [(f"{name} ({trends.count(name):,})", _TRENDS[name]) for name in _TRENDS]
        return [_TRENDS[trend] for trend in trends], words
    return [BLUE] * len(layers), [("one head", BLUE)]


def profile(request: Request) -> Drawing:
    """The mean over heads with its interval, and the spread over heads."""
    shown = cells_of(request)[1]
    profiles = Profiles.of(request.run, shown, request.at_starts)
    low, q1, q3, high = np.nanquantile(profiles.values, _QUANTILES, axis=0)  # (buckets,)
    spreads = [
        Spread(profiles.mean_x, q1, q3, "middle 50 % of heads", 0.3),
        Spread(profiles.mean_x, low, high, "middle 90 % of heads", 0.14),
    ]
    lines, references = _mean_and_baselines(request, profiles)
    y = share_axis(shown.name, request.options.range == "unit")
    near = _at_equal_distances(request, profiles)
    change = Lines(profiles.axis, share_axis("mean over heads"), [*lines[:1], *near])
    panel = Lines(profiles.axis, y, [*spreads, *lines])
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
        _drawing(request, profiles, [panel, change], references),
        title=f"{capitalised(shown.name)}, spread over heads",
        shows=shows,
        layout=Layout(height=1.55, columns=1, share_x=True),
    )


@dataclass(frozen=True)
class _NearLine(Line):
    """The mean over heads at equal distances."""

    reach: int = 0  # tokens


def _at_equal_distances(request: Request, profiles: Profiles) -> list[_NearLine]:
    """The mean over heads with keys at the distances of the first fifth alone, if it is known."""
    run = request.run
    reach = near_reach(run.table("bins"), run.context) if profiles.part == "bin" else None
    rows = bucket_errors(run, NEAR_BIN_QUANTITY)
    if reach is None or rows is None or rows.empty:
        return []
    mean = mean_of_buckets(rows, run.eligible_heads)
    x = pd.Series(profiles.mean_x, profiles.buckets).reindex(mean["q_bucket"]).to_numpy(np.float64)
    half = mean["half_width"].to_numpy(np.float64) if request.options.intervals else None
    values, label = mean["plasticity"].to_numpy(np.float64), "the same, keys at equal distances"
    return [_NearLine(np.asarray(x), values, half, label, BLUE, (0, (4.5, 1.8)), reach=reach)]


def _mean_and_baselines(request: Request, profiles: Profiles) -> tuple[list[Line], str | None]:
    """The lines of the mean and of the baselines, and a sentence about the baselines."""
    wanted = request.options.intervals
    half = profiles.mean_half if wanted else np.full(len(profiles.mean), np.nan)
    mean = Line(profiles.mean_x, profiles.mean, half, "mean over heads", halo=True)
    lines: list[Line] = [mean]
    parts: list[str] = []
    baselines = request.run.baselines if request.options.baselines else {}
    for name, draws in baselines.items():
        if profiles.part == "bin" and not all(run.has("bins") for run in draws):
            continue
        own = [Profiles.of(run, profiles.shown) for run in draws]
        level, reach = mean_of_draws(*_side_by_side(own))
        colour, dashes, meaning = _LOOKS[name]
        lines.append(Line(own[0].mean_x, level, reach if wanted else None, name, colour, dashes))
        numbers = [count(draws[0].texts["count"], "text")] if draws[0].texts.get("count") else []
        numbers += [f"mean of {count(len(draws), 'draw')}"] if len(draws) > 1 else []
        parts.append(f"{name}, {meaning}" + (f" ({', '.join(numbers)})" if numbers else ""))
    return lines, f"Reference lines: {'; '.join(parts)}." if parts else None


def _side_by_side(draws: Sequence[Profiles]) -> tuple[Floats, Floats, Floats]:
    """Means, half widths and groups of texts of several draws of one baseline, (draws, buckets)."""
    number = len(draws[0].groups)
    same = [one for one in draws if len(one.groups) == number]  # others lack bins of failed heads
    found = ((one.mean, one.mean_half, one.groups) for one in same)
    means, halves, groups = (np.stack(part) for part in zip(*found, strict=True))
    return means, halves, groups


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


def _by_head(profiles: pd.DataFrame, column: str) -> pd.DataFrame:
    """A column as heads × buckets."""
    return profiles.pivot(index=HEAD, columns="q_bucket", values=column)


def _column_mean(values: Floats, seen: npt.NDArray[np.bool_]) -> Floats:
    number = seen.sum(axis=0)
    total = np.where(seen, values, 0.0).sum(axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)
