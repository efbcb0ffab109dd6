"""Figures over distance and over dimensions: attention, and position in queries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.figures.compose import Layout
from attention_plasticity.figures.draw import Drawing, Request
from attention_plasticity.figures.marks import Guide, interval_note
from attention_plasticity.figures.shapes import Bars, Line, Lines, Part, Spread
from attention_plasticity.figures.style import (
    BLUE,
    ORANGE,
    VERMILION,
    Axis,
    figure_text,
    share_axis,
)
from attention_plasticity.metrics import DISTANCE_QUANTITY, HEAD
from attention_plasticity.tables.attention_masses import mass_bins, masses_without_sinks
from attention_plasticity.tables.csv_tables import require_values
from attention_plasticity.tables.intervals import bin_influences, mean_of_bins
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]

_MOST_LABELS = 9  # on the axis of distances
_SPREAD = (0.1, 0.9)


def attention(request: Request) -> Drawing:
    """The share of attention at every distance, with the first four tokens apart."""
    run, table = request.run, request.run.table("attention")
    bins = mass_bins(table)
    if not bins:
        path = run.path("attention")
        raise ConfigError(f"{path}: every mass is 0 or not known, so there is nothing to draw")
    masses = masses_without_sinks(table, bins, run.geometry).values  # (heads, 1 + bins)
    known = masses[~np.isnan(masses[:, 0])]
    mean = known.mean(axis=0)  # (1 + bins,)
    low, high = np.nanquantile(known, _SPREAD, axis=0)  # (1 + bins,) each
    step = -(-len(bins) // _MOST_LABELS)
    places = [0, *range(1, 1 + len(bins), step)]
    labels = ["first\n4", *map(_short, bins[::step])]
    x = np.arange(len(mean), dtype=np.float64)
    beside = np.array([-0.3, 0.3])  # around the place of the first tokens
    panel = Lines(
        Axis("distance (tokens, in bins)", ticks=([float(place) for place in places], labels)),
        Axis("share of attention", low=0.0, lines=True),
        [
            Spread(beside, low[[0, 0]], high[[0, 0]], "", 0.3, ORANGE),
            Spread(x[1:], low[1:], high[1:], "middle 80 % of heads", 0.3),
            Line(x[:1], mean[:1], None, "on the first 4 tokens", ORANGE, "none", marker="D"),
            Line(x[1:], mean[1:], None, "mean over heads", BLUE),
        ],
    )
    heads = len(table[HEAD].drop_duplicates())
    notes = ["bins: 0, 1, 2–3, 4–7 tokens and so on"]
    return Drawing([panel], heads, notes, layout=Layout(height=2.0))


def plasticity(request: Request) -> Drawing:
    """RoPE-aligned plasticity by the distance of keys: of all queries, and of the last ones."""
    run, wanted = request.run, request.options.intervals
    table = run.table("distances")
    require_values(table, "plasticity", run.path("distances"))
    grouped = table[table["plasticity"].notna()].groupby("distance_bin")
    x = grouped["distance"].mean()
    low, high = (grouped["plasticity"].quantile(q) for q in (0.25, 0.75))
    half = pd.Series(np.nan, x.index)
    rows = bin_influences(run, DISTANCE_QUANTITY)
    if wanted and rows is not None and not rows.empty:
        mean_half = mean_of_bins(rows, run.eligible_heads).set_index("q_bucket")["half_width"]
        half = mean_half.reindex(x.index)
    fifths = [
        Line(*_points(x, grouped[name].mean()), None, f"queries of the {words}", colour, dashes)
        for name, words, colour, dashes in (
            ("first20", "first fifth", BLUE, (0, (1.2, 1.2))),
            ("last20", "last fifth", VERMILION, (0, (4.5, 1.8))),
        )
    ]
    at, values = _points(x, grouped["plasticity"].mean())
    mean = Line(at, values, _floats(half), "all queries, mean over heads", halo=True)
    spread = Spread(at, _floats(low), _floats(high), "middle 50 % of heads", 0.3)
    across = Axis("distance of keys (tokens)", scale="doubling")
    name = AT_ONE_POSITION.name
    panels = [
        Lines(across, share_axis(name, request.options.range == "unit"), [spread, mean, *fifths]),
        Lines(across, share_axis("mean over heads"), [mean, *fifths]),
    ]
    band = interval_note("band", _floats(half), run.eligible_heads)
    heads = len(table[HEAD].drop_duplicates())
    return Drawing(
        panels,
        heads,
        [band if wanted else None],
        shown=AT_ONE_POSITION,
        layout=Layout(height=1.55, columns=1, share_x=True),
    )


def _points(x: pd.Series[float], y: pd.Series[float]) -> tuple[Floats, Floats]:
    """The known points of a line."""
    known = y.notna().to_numpy()
    return _floats(x)[known], _floats(y)[known]


def _floats(column: pd.Series[float]) -> Floats:
    return np.asarray(column, np.float64)


def _short(first: int) -> str:
    """`512`, `1k`, `64k`, `1M`: powers of two."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if first >= size:
            return f"{first // size}{unit}"
    return str(first)


def components(request: Request) -> Drawing:
    """The share of the linear position R² of every dimension, or of the largest."""
    options, run = request.options, request.run
    weights = run.component_weights
    require_values(weights, "weight", run.path("component_weights"))
    shares = component_shares(weights, options.agg)
    width, limit = len(shares), options.limit
    x = Axis("dimension", whole=True)
    if limit is not None:
        shares = shares.nlargest(limit)
        step = -(-len(shares) // 16)
        names = [str(name) for name in shares.index][::step]
        places = [float(place) for place in range(0, len(shares), step)]
        x = Axis("dimension, by weight", ticks=(places, names))
    number = len(shares)
    y = Axis(figure_text(options.ylabel or "share of linear position R²"), lines=True)
    heads = len(weights[HEAD].drop_duplicates())
    marks = [Guide(1.0 / width, "uniform share (1/d)")]
    panel = Bars(x, y, [Part("", np.asarray(shares, np.float64))], marks=marks)
    notes = [
        f"{options.agg} over heads",
        f"the {number} largest of {width} dimensions" if limit is not None else None,
        "queries after RoPE, if the model has it",
    ]
    return Drawing([panel], heads, notes)


def component_shares(weights: pd.DataFrame, agg: str) -> pd.Series[float]:
    """Per dimension, the mean or median over heads of a head's normalised weights."""
    sums = weights.groupby(HEAD)["weight"].transform("sum")
    normalised = (weights["weight"] / sums.where(sums > 0)).rename("share")
    grouped = normalised.groupby(weights["component"])
    return grouped.mean() if agg == "mean" else grouped.median()
