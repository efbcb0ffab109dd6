"""Figures over distance, wavelength and dimension: attention, rotary kernel, bands, components."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.figures.captions import interval_sentence
from attention_plasticity.figures.marks import Guide, Mark
from attention_plasticity.figures.shapes import Bars, Layout, Line, Lines
from attention_plasticity.figures.spec import Drawing, Request
from attention_plasticity.figures.style import (
    BLUE,
    ORANGE,
    VERMILION,
    Axis,
    figure_text,
    line_shades,
    signed,
    whole,
)
from attention_plasticity.metrics import KERNEL_R2
from attention_plasticity.tables.attention_masses import HeadMasses, mass_bins, masses_without_sinks
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import head_half_width, row_half_width
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]

_PARTS = ("early", "middle", "late")
_MOST_LABELS = 14  # on the axis of distances
_SPREAD = (0.1, 0.9)
_SINKS = "first\n4"


def one_head(run: FinishedRun) -> tuple[int, int] | None:
    """Layer and head if one layer and one head were selected; None otherwise."""
    if run.layers is None or run.heads is None or len(run.layers) != 1 or len(run.heads) != 1:
        return None
    return next(iter(run.layers)), next(iter(run.heads))


def attention(request: Request) -> Drawing:
    """The share of attention at every distance, with the first four tokens apart."""
    table, head = request.run.table("attention"), one_head(request.run)
    bins = mass_bins(table)
    if not bins:
        path = request.run.path("attention")
        raise ConfigError(f"{path}: every mass is 0 or not known, so there is nothing to draw")
    labels = [_SINKS, *(_short(first) for first in bins)]
    step = -(-len(bins) // _MOST_LABELS)
    places = [0, *range(1, len(labels), step)]
    ticks = ([float(place) for place in places], [labels[place] for place in places])
    x = Axis("distance from query to key (tokens; bins 0, 1, 2–3, 4–7, …)", ticks=ticks)
    y = Axis("share of attention", low=0.0, lines=True)
    drawn = _parts_of_context if request.options.by_position else _all_queries
    panel, marks, note = drawn(request, table, bins, (x, y))
    name = f"layer {head[0]}, head {head[1]}" if head else ""
    heads = len(table[HEAD].drop_duplicates())
    notes = [name or f"mean over {request.heads(heads)}", note]
    of = f"of {name}" if name else "as a mean over heads"
    shows = (
        f"Share of attention by distance from query to key, {of}, in bins of distance 0, 1, 2–3, "
        "4–7 and so on. The attention on the first four tokens of a text stands apart, at the "
        "left; the other bars are without it."
    )
    details = [
        "How much of a bin goes to the first four tokens follows from the positions of the "
        "queries, in their bucket spread evenly.",
        marks,
        interval_sentence("Intervals are upper bounds of 95 % intervals,", table["n_groups"])
        if head and request.options.intervals
        else None,
    ]
    title = f"Attention by distance{f', {name}' if name else ''}"
    words = request.words(title, notes, shows, heads, details)
    return Drawing([panel], words, Layout(height=2.0))


def _all_queries(
    request: Request, table: pd.DataFrame, bins: list[int], axes: tuple[Axis, Axis]
) -> tuple[Bars, str | None, str | None]:
    """Bars over all queries, with the interval of a head, or with how much heads differ.

    Also returned: a sentence about the marks, and the note of the figure.
    """
    masses = masses_without_sinks(table, bins, request.run.geometry)
    mean, colours = _mean(masses), [ORANGE, *[BLUE] * len(bins)]
    if one_head(request.run) is not None:
        half = masses.half[0] if request.options.intervals else None
        note = "whiskers: 95 % interval over texts (upper bound)" if half is not None else None
        return Bars(*axes, mean, colours, half=half), None, note
    low, high = np.nanquantile(masses.values, _SPREAD, axis=0)  # (1 + bins,)
    marks = "Boxes are the range of the middle 80 % of heads, not the error of the mean."
    entries = [("mean over heads", BLUE), ("on the first 4 tokens", ORANGE)]
    box = "middle 80 % of heads (no error bar)"
    panel = Bars(*axes, mean, colours, low=low, high=high, entries=entries, box=box)
    return panel, marks, None


def _parts_of_context(
    request: Request, table: pd.DataFrame, bins: list[int], axes: tuple[Axis, Axis]
) -> tuple[Lines, str | None, str | None]:
    """A line for each third of the query buckets."""
    buckets = np.unique(table["q_bucket"])
    parts = np.array_split(buckets, min(len(_PARTS), len(buckets)))
    names = {1: _PARTS[1:2], 2: _PARTS[::2], 3: _PARTS}[len(parts)]
    shades = line_shades(request.cmap("viridis"))(np.linspace(0.0, 0.85, len(parts)))
    x = np.insert(np.arange(len(bins) + 1, dtype=np.float64), 1, np.nan)
    single = one_head(request.run) is not None and request.options.intervals
    lines = []
    for name, part, shade in zip(names, parts, shades, strict=True):
        chosen = table[table["q_bucket"].isin(part)]
        masses = masses_without_sinks(chosen, bins, request.run.geometry)
        half = np.insert(masses.half[0], 1, np.nan) if single else None
        label = f"{name}: {_place(chosen)}"
        y = np.insert(_mean(masses), 1, np.nan)  # no line from the first tokens to distances
        lines.append(Line(x, y, half, label, tuple(shade), marker="o"))
    marks = "The lines are early, middle and late queries: thirds of the query buckets."
    note = "lines: thirds of the query buckets, with their mean positions"
    return Lines(*axes, lines), marks, note


def _mean(masses: HeadMasses) -> Floats:
    """(1 + bins,) mean over the heads with a value."""
    seen = masses.values[~np.isnan(masses.values[:, 0])]
    return np.asarray(seen.mean(axis=0), np.float64)


def _place(rows: pd.DataFrame) -> str:
    """Mean positions of the first and the last bucket, or the numbers of these buckets."""
    if "q_position" not in rows or rows["q_position"].isna().all():
        low, high, unit = rows["q_bucket"].min(), rows["q_bucket"].max(), "bucket "
    else:
        means = rows.groupby("q_bucket")["q_position"].mean()
        low, high, unit = means.min(), means.max(), ""
    return unit + (whole(low) if low == high else f"{whole(low)}–{whole(high)}")


def _short(first: int) -> str:
    """`512`, `1k`, `64k`, `1M`: powers of two."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if first >= size:
            return f"{first // size}{unit}"
    return str(first)


def kernel(request: Request) -> Drawing:
    """Mean logit of a head by distance with its interval, and its rotary kernel."""
    table, head = request.run.table("kernel"), one_head(request.run)
    chosen = head is None
    if head is None:
        spread = table.groupby(HEAD)["kernel"].std(ddof=0)
        place = int(np.nanargmax(spread.to_numpy(np.float64)))
        layer, number = spread.index.to_frame().to_numpy()[place].tolist()
        head, chosen = (layer, number), len(spread) > 1
    own = (table["layer"] == head[0]) & (table["q_head"] == head[1])
    rows = table[own].sort_values("distance")
    name = f"layer {head[0]}, head {head[1]}"
    require_values(rows, "kernel", f"{request.run.path('kernel')}: {name}")
    x, logit, turned = (
        rows[one].to_numpy(np.float64) for one in ("distance", "mean_logit", "kernel")
    )
    both = np.isfinite(logit) & np.isfinite(turned)
    shift = float(np.mean(logit[both] - turned[both]))
    half = row_half_width(rows, "mean_logit") if request.options.intervals else None
    lines = [
        Line(x, logit, half, "mean logit", BLUE, marker="o"),
        Line(x, turned + shift, None, "rotary kernel, shifted", VERMILION),
    ]
    r2 = _r2(request.run, head)
    moved = signed(shift, "+.2f")
    notes = [
        f"R² of the kernel: {r2}" if r2 else None,
        f"kernel shifted by {moved}: a constant does not change attention",
        "band: 95 % interval over texts" if half is not None else None,
        "the head whose kernel varies most" if chosen else None,
    ]
    shows = (
        f"Mean logit of {name} by distance, over pairs of a query and an earlier key, and its "
        "rotary kernel: the logit of the mean query and the mean key at the same positions."
    )
    details = [
        f"The kernel is shifted by {moved}, so that both have the same mean; a constant does not "
        "change attention.",
        f"R² of the kernel is {r2}." if r2 else None,
        interval_sentence("The band is the 95 % interval,", rows["n_groups"])
        if half is not None and np.isfinite(half).any()
        else None,
        "Of all heads, this one has the kernel that varies most." if chosen else None,
    ]
    axes = Axis("distance (tokens)", scale="log"), Axis("logit", lines=True)
    return Drawing(
        [Lines(*axes, lines)], request.words(f"Rotary kernel, {name}", notes, shows, 1, details)
    )


def _r2(run: FinishedRun, head: tuple[int, int]) -> str | None:
    """R² of the kernel of a head with its interval; None if it is not known."""
    if not run.has("head_metrics") or KERNEL_R2 not in run.head_metrics:
        return None
    metrics = run.head_metrics
    row = metrics[(metrics["layer"] == head[0]) & (metrics["q_head"] == head[1])]
    if row.empty or np.isnan(row[KERNEL_R2].iloc[0]):
        return None
    value = float(row[KERNEL_R2].iloc[0])
    half = float(head_half_width(row, KERNEL_R2, run.influences)[0])
    if np.isnan(half):
        return signed(value, ".3f")
    shown = 4 if half < 0.002 else 3  # decimals
    return f"{signed(value, f'.{shown}f')} ± {half:.{shown}f}"


def bands_of_head(request: Request, layer: int, head: int) -> Drawing:
    """Size, share of the variance and concentration of the rotary bands of one head."""
    rows, name = request.run.table("bands"), f"layer {layer}, head {head}"
    require_values(rows, "wavelength", f"{request.run.path('bands')}: {name}")

    def line(column: str, label: str | None, colour: str, marker: str = "o") -> Line:
        values = rows["wavelength"], rows[column] if column in rows else rows["wavelength"] * np.nan
        x, y = (one.to_numpy(np.float64) for one in values)
        half = row_half_width(rows, column) if request.options.intervals else None
        return Line(x, y, half, label, colour, marker=marker, whiskers=True, width=0.9)

    context = request.run.context
    inside = rows["wavelength"].min() < context < rows["wavelength"].max()
    marks: list[Mark] = []
    if inside:
        marks = [Guide(context, f"longest text: {context:,.0f} tokens", vertical=True)]
    x = Axis("wavelength of the band (tokens)", scale="log")
    panels = [
        Lines(
            x,
            Axis("size (logits)", lines=True, low=0.0),
            [
                line("norm_product", "mean lengths", BLUE),
                line("kernel_amplitude", "lengths of the means", VERMILION, "s"),
            ],
            marks=marks,
        ),
        Lines(
            x,
            Axis("share of variance", lines=True, zero=True),
            [line("variance_share", None, BLUE)],
            marks=marks,
        ),
        Lines(
            x,
            Axis("concentration", -0.03, 1.03, lines=True),
            [
                line("q_concentration", "queries", BLUE),
                line("k_concentration", "keys", VERMILION, "s"),
            ],
            marks=marks,
        ),
    ]
    rest = 1.0 - float(rows["variance_share"].sum(skipna=False))
    others = f"share of other dimensions: {rest:.2f}" if abs(rest) > 0.005 else None
    notes = [
        "sizes: mean lengths and lengths of the means, queries × keys",
        others,
        "whiskers: 95 % interval over texts" if request.options.intervals else None,
    ]
    shows = (
        f"Rotary bands of {name}: pairs of dimensions that RoPE turns with one frequency, over the "
        "tokens per turn."
    )
    details = [
        "Top: mean length of a query times mean length of a key in the band, and length of the "
        "mean query times length of the mean key before RoPE, which is the amplitude of the rotary "
        "kernel, both in logits. Middle: share of the variance of the logit over pairs of a query "
        "and an earlier key. Bottom: concentration, the length of the mean divided by the mean "
        "length before RoPE.",
        BAND_SHARES,
        f"Dimensions that RoPE does not turn have {rest:.2f} of the variance." if others else None,
        interval_sentence("Whiskers are 95 % intervals,", rows.reindex(columns=["n_groups"])),
    ]
    words = request.words(f"Rotary bands, {name}", notes, shows, 1, details)
    return Drawing(panels, words, Layout(height=1.35, columns=1, share_x=True))


BAND_SHARES = (
    "The share of a band is its covariance with the whole logit, divided by the variance of the "
    "logit; the shares of a head sum to 1. A share is negative where the band works against the "
    "others."
)


def components(request: Request) -> Drawing:
    """The share of the linear position R² of every dimension, or of the largest."""
    options, run = request.options, request.run
    weights = run.component_weights
    require_values(weights, "weight", run.path("component_weights"))
    shares = component_shares(weights, options.agg)
    width, limit = len(shares), None if options.limit is None else int(options.limit)
    if limit is not None:
        shares = shares.nlargest(limit)
    number = len(shares)
    x = Axis("dimension" if limit is None else "dimension, by weight", whole=True)
    if limit is not None:
        step = -(-number // 16)
        names = [str(name) for name in shares.index][::step]
        x = Axis(x.label, ticks=([float(place) for place in range(0, number, step)], names))
    y = Axis(figure_text(options.ylabel or "share of linear position R²"), lines=True)
    heads = len(weights[HEAD].drop_duplicates())
    shown = f"{number} of {width} dimensions" if limit is not None else None
    marks = [Guide(1.0 / width, "uniform share (1/d)")]
    panel = Bars(x, y, np.asarray(shares, np.float64), [BLUE] * number, marks=marks)
    shows = (
        "Share of the linear position R² in each dimension of the captured queries, "
        f"{options.agg} over heads."
    )
    details = [
        "The shares of a head sum to 1. The dashed line is the uniform share, 1/d with "
        f"d = {width} dimensions.",
        "Queries are as they enter the attention, after RoPE if the model has it. Dimensions that "
        "RoPE turns slowly then follow position by themselves; the figure does not show where the "
        "model stores position.",
        f"The {number} largest dimensions are drawn." if shown else None,
    ]
    notes = [
        f"{options.agg} over {request.heads(heads)}",
        shown,
        "queries after RoPE, if the model has it",
    ]
    words = request.words("Position in the dimensions of queries", notes, shows, heads, details)
    return Drawing([panel], words)


def component_shares(weights: pd.DataFrame, agg: str) -> pd.Series[float]:
    """Per dimension, the mean or median over heads of a head's normalised weights."""
    sums = weights.groupby(HEAD)["weight"].transform("sum")
    normalised = (weights["weight"] / sums.where(sums > 0)).rename("share")
    grouped = normalised.groupby(weights["component"])
    return grouped.mean() if agg == "mean" else grouped.median()
