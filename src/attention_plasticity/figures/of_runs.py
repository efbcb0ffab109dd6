"""Figures of several runs, drawn from the tables of their summary.

Most are lines over the groups of a summary, a panel per metric and a line per run. The last one is
a map per pair of models, of the heads that both have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.compare.bands import wavelengths
from attention_plasticity.compare.groups import DEPTHS
from attention_plasticity.compare.lengths import part_start
from attention_plasticity.compare.matched import RATE
from attention_plasticity.compare.runs import Pair, main_of
from attention_plasticity.compare.several import SeveralRuns
from attention_plasticity.compare.summary import summary
from attention_plasticity.figures.captions import (
    Words,
    capitalised,
    half_widths,
    interval_line,
    model_words,
    phase_sentence,
    require_rows,
    short_names,
)
from attention_plasticity.figures.compose import Layout
from attention_plasticity.figures.marks import Mark, Marked
from attention_plasticity.figures.shapes import Bar, Bars, Grid, Line, Lines, Panel, Part, row_axis
from attention_plasticity.figures.style import (
    PALETTE,
    QUIET,
    SIGNED,
    Axis,
    figure_text,
    line_shades,
    share_axis,
)
from attention_plasticity.metrics import (
    ALIGNED,
    ALIGNED_DROP,
    NEAR,
    NEAR_DROP,
    PHASE,
    PHASE_DROP,
    label_of,
)
from attention_plasticity.roles import NAMES
from attention_plasticity.tables.head_roles import COLOURS
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

MARKERS = "osD^vP*X"
_LONGEST_NAME = 44  # characters in a legend
_MOST_MAPS = 6
DrawnRuns = tuple[Sequence[Panel], Words, Layout]
_PANEL = Layout(height=1.9, least=2.9)
_DROPS = (ALIGNED_DROP, NEAR_DROP, PHASE_DROP)


def look(place: int, number: int) -> dict[str, Any]:
    """Colour and marker of a run. More runs than colours have shades in their order."""
    colour: Any = PALETTE[place % len(PALETTE)]
    if number > len(PALETTE):
        colour = tuple(line_shades("viridis")(place / (number - 1)))
    return {"colour": colour, "marker": MARKERS[place % len(MARKERS)]}


def _panels(
    frame: pd.DataFrame,
    across: Axis,
    places: Mapping[str, float],
    *,
    labels: Sequence[str] | None = None,
    whiskers: bool = False,
    marks: Sequence[Mark] = (),
) -> list[Lines]:
    """A panel per metric, with a line per run over the places of the groups."""
    names = list(dict.fromkeys(frame["run"])) if labels is None else labels
    panels = []
    for metric in dict.fromkeys(frame["metric"]):
        rows = frame[frame["metric"] == metric]
        up = share_axis(label_of(metric), zero=metric in _DROPS)
        panels.append(Lines(across, up, _lines(rows, names, places, whiskers=whiskers), marks))
    return panels


def _lines(
    rows: pd.DataFrame,
    labels: Sequence[str],
    places: Mapping[str, float],
    *,
    whiskers: bool,
    shifted: bool = True,
) -> list[Line]:
    """A line per run. `shifted`: runs with whiskers, so that these do not cover each other."""
    reach = min(0.2, 0.04 * (len(labels) - 1)) if whiskers and shifted else 0.0
    shifts = np.linspace(-reach, reach, len(labels))
    found = []
    for number, name in enumerate(short_names(labels, _LONGEST_NAME)):
        own = rows[rows["run"] == labels[number]]
        x = own["group"].map(places).to_numpy(np.float64) + shifts[number]
        order = np.argsort(x, kind="stable")
        y, half = own["mean"].to_numpy(np.float64)[order], half_widths(own)[order]
        style = look(number, len(labels))
        found.append(Line(x[order], y, half, figure_text(name), whiskers=whiskers, **style))
    return found


def _group_axis(label: str, groups: Sequence[str]) -> tuple[Axis, dict[str, float]]:
    """An axis with named places, and the place of every group."""
    places = {group: float(place) for place, group in enumerate(groups)}
    ticks = (list(places.values()), list(groups))
    return Axis(label, -0.4, len(groups) - 0.6, ticks=ticks), places


def profiles(of: SeveralRuns) -> DrawnRuns:
    """The mean profile of every run over positions, and by distance."""
    runs = of.runs
    shown = main_of(runs)
    frame = summary(runs, "bin", pairs=[])
    frame = frame[frame["metric"] == shown.level]
    require_rows(frame, "profiles")
    across = Axis("query position (tokens)", scale="positions")
    panels = _panels(frame, across, {group: float(group) for group in set(frame["group"])})
    name = capitalised(shown.name)
    shows = f"{name}, by query position: the mean over heads, one line per run. "
    title = f"{name}, over the context"
    distances = summary(runs, "distance", pairs=[])
    if shown is AT_ONE_POSITION and not distances.empty:
        away = Axis("distance of keys (tokens)", scale="doubling")
        places = {group: float(group) for group in set(distances["group"])}
        panels += _panels(distances, away, places, labels=[one.label for one in runs])
        title += " and by distance"
        shows += "Right: by the distance from query to key; later queries have farther keys. "
    shows += phase_sentence(shown)
    notes = [interval_line(frame, "bands")]
    words = model_words(title, shows, runs, notes=notes)
    return panels, words, Layout(height=2.3)


def lengths(of: SeveralRuns) -> DrawnRuns:
    """Plasticity, phase and their drops by length of the context."""
    runs, frame = of.runs, of.by("length")
    metrics = (ALIGNED, NEAR, PHASE, *_DROPS)
    own = frame[(frame["minus"] == "") & frame["metric"].isin(metrics)]
    require_rows(own, "lengths")
    groups = sorted(set(own["group"]), key=part_start)
    own = own.sort_values("metric", key=lambda names: names.map(metrics.index), kind="stable")
    panels = _panels(own, *_group_axis("position (tokens)", groups), whiskers=True)
    title = "RoPE-aligned plasticity and rotary phase, by length of the context"
    shows = (
        "RoPE-aligned plasticity with all keys and with near keys alone, rotary phase "
        "(plasticity over a bin minus RoPE-aligned plasticity), and their drops by length of "
        "the context, one line per run. K is 1,024 tokens."
    )
    missing = [one.label for one in runs if one.label not in set(own["run"])]
    details = [
        "A value is the mean over the heads of a model and over positions: over the bins of "
        "queries whose middle is in the part.",
        "Near keys are at the distances that queries of the first fifth have; with all keys, "
        "later queries have farther keys, so that a drop can come from distance alone. The drop of "
        "near keys begins in the first part in which they have a value."
        if NEAR in set(own["metric"])
        else "",
        _drop_sentence(own),
        "A part without a value has no bin of queries with an earlier bin of keys, or no text "
        "reaches it; shorter bins give values to shorter lengths.",
        f"No RoPE-aligned plasticity: {', '.join(missing)}." if missing else "",
    ]
    words = model_words(title, shows, runs, details, [interval_line(own, "whiskers")])
    return panels, words, _PANEL


def _drop_sentence(frame: pd.DataFrame) -> str:
    """From which part on a drop is counted: the first one, which has no drop."""
    phase, drop = (set(frame[frame["metric"] == name]["group"]) for name in (PHASE, PHASE_DROP))
    first = sorted(phase - drop, key=part_start)
    return f"A drop is the value at {first[-1]} minus the value at a later part." if first else ""


def depth(of: SeveralRuns) -> DrawnRuns:
    """Means by tenths of the depth, a line with a band per run and a panel per metric."""
    runs, frame = of.runs, _of_metrics(of.by("depth"), of.map_metrics)
    own = frame[frame["minus"] == ""]
    require_rows(own, "depth")
    middle = {group: 10.0 * place + 5.0 for place, group in enumerate(DEPTHS)}  # per cent
    places = [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    across = Axis("relative depth (%)", 0.0, 100.0, ticks=(places, [f"{x:g}" for x in places]))
    labels = list(map(label_of, dict.fromkeys(own["metric"])))
    shows = (
        "Mean over heads by relative depth, one line per run: the layers of a model are divided "
        "into ten equal parts of its depth, and a layer belongs to the part that has its middle. A "
        "model with fewer layers has in each part the layer at the middle of the part. Shown: "
        f"{', '.join(labels)}."
    )
    notes = [interval_line(own, "bands")]
    words = model_words("Means over heads, by relative depth", shows, runs, notes=notes)
    panels = _panels(own, across, middle)
    return panels, words, Layout(height=1.9, columns=3 if len(panels) in (3, 5, 6) else 2)


def _of_metrics(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """The rows of some metrics, in their order."""
    places = {name: place for place, name in enumerate(metrics)}
    own = table[table["metric"].isin(places)]
    return own.sort_values("metric", key=lambda names: names.map(places), kind="stable")


def bands(of: SeveralRuns) -> DrawnRuns:
    """Shares by eighths of the rotary bands and, if there are pairs, their differences."""
    runs, frame = of.runs, of.by("band")
    means, differences = frame[frame["minus"] == ""], frame[frame["minus"] != ""]
    require_rows(means, "bands")
    axis = _group_axis("eighth of the rotary bands", list(dict.fromkeys(means["group"])))
    labels = [one.label for one in runs]
    up = share_axis("share of the variance", zero=True)
    panels = [Lines(axis[0], up, _lines(means, labels, axis[1], whiskers=True, shifted=False))]
    listed = "; ".join(
        f"{one.label}: {', '.join(f'{low:,.0f}–{high:,.0f}' for low, high in ends)}"
        for one in runs
        if (ends := wavelengths(one.run).values())
    )
    details = [f"Wavelengths of the eighths in tokens: {listed}." if listed else ""]
    if len(differences):
        others = list(dict.fromkeys(differences["minus"]))
        minus = others[0] if len(others) == 1 else "the first of the family"
        up = share_axis(f"difference from {minus}", zero=True)
        panels.append(
            Lines(axis[0], up, _lines(differences, labels, axis[1], whiskers=True, shifted=False))
        )
        details.append(f"The second panel has the difference of the same heads from {minus}.")
    words = model_words(
        "Rotary bands: share of the variance of the logit",
        "Share of the variance of the logit by eighths of the rotary bands, from the fastest to "
        "the slowest, as a mean over heads, one line per run. A rotary band is a pair of "
        "dimensions that RoPE turns with one frequency. The shares of a head sum to 1 with that of "
        "the dimensions that RoPE does not turn. A share is the covariance of the part of the "
        "logit with the whole logit, divided by the variance of the logit; it is below 0 where the "
        "part works against the others.",
        runs,
        details,
        [interval_line(means, "whiskers"), "1: the shortest wavelengths, 8: the longest"],
    )
    return panels, words, _PANEL


def roles(of: SeveralRuns) -> DrawnRuns:
    """The shares of heads of each role: one bar per run."""
    runs, counts = of.runs, of.role_counts
    if counts.empty:
        raise ConfigError("roles: no run has the table of roles, so there is nothing to draw")
    labels = [one.label for one in runs if one.label in set(counts["run"])]
    parts: list[Part] = []
    start = np.zeros(len(labels))
    for role in NAMES:
        rows = counts[counts["role"] == role].set_index("run").loc[labels]
        sure, likely = (
            100.0 * (rows[name] / rows["heads"]).to_numpy() for name in ("sure", "likely")
        )
        if likely.any():
            own: Any = {"colour": COLOURS[role], "width": 0.72}
            parts.append(Part(role, sure, start=start, **own))
            parts.append(Part("", likely - sure, start=start + sure, hatch="/////", **own))
            start = start + likely
    names = [figure_text(name) for name in short_names(labels, 22)]
    others = [one.label for one in runs if one.label not in labels]
    words = model_words(
        "Roles of heads",
        "Share of the heads of each model that likely have each role, one bar per run.",
        runs,
        [
            "A head has the first role whose score reaches its threshold. Hatched: unsure; the "
            "role is likely, but a 95 % interval of a score contains a threshold that decides, or "
            "scores on repeated tokens would decide and are not known.",
            f"No table of roles: {', '.join(others)}." if others else "",
        ],
        ["hatched: unsure"],
        intervals=False,
    )
    panel = Bars(Axis("share of heads (%)", 0.0, 100.0), row_axis(names), parts, across=True)
    return [panel], words, Layout(height=0.6 + 0.22 * len(labels))


def matched(of: SeveralRuns) -> DrawnRuns:
    """One map per pair, for the first metric; at most six pairs.

    Only heads that changed are coloured; layer 0 is at the top.
    """
    metric, pairs = of.map_metrics[0], of.pairs
    own = of.matched[of.matched["metric"] == metric]
    tables = [
        (pair, own[(own["run"] == pair.run.label) & (own["minus"] == pair.minus.label)])
        for pair in pairs
    ]
    known = [(pair, rows) for pair, rows in tables if len(rows)]
    if not known:
        raise ConfigError("matched heads: no two models have the same heads with values")
    shown = known[:_MOST_MAPS]
    changes = pd.concat([rows[rows["changed"].astype(bool)] for _, rows in shown])["difference"]
    reach = float(changes.abs().max()) if len(changes) else 1.0
    bar = Bar(f"difference of {label_of(metric)}", -reach, reach, SIGNED)
    notes = ["white: no change detected"]
    if further := len(known) - len(shown):
        notes.append(f"{count(further, 'further pair')} in the table matched_heads")
    drawn = [pair for pair, _ in shown]
    words = model_words(
        "Heads that changed",
        f"Difference of {label_of(metric)} of the same head in two models, one map per pair, "
        "for the heads that changed. White: no change detected. Grey dots: no value in one of the "
        "models.",
        list({run.label: run for pair in drawn for run in pair}.values()),
        [_tests(drawn)],
        notes,
        intervals=False,
    )
    panels = [_map(pair, rows, bar) for pair, rows in shown]
    return panels, words, Layout(2.2, least=2.0)


def _map(pair: Pair, rows: pd.DataFrame, bar: Bar) -> Grid:
    """The differences of the heads of a pair that changed."""
    layers, heads = (rows[name].to_numpy(np.int64) for name in ("layer", "q_head"))
    changed = rows["changed"].to_numpy(bool)
    values = np.full((layers.max() + 1, heads.max() + 1), np.nan)  # (layers, heads)
    values[layers[changed], heads[changed]] = rows["difference"].to_numpy(np.float64)[changed]
    missing = np.ones(values.shape, np.bool_)
    missing[layers, heads] = False
    tested = int(rows["p_value"].notna().sum())
    names = short_names([pair.run.label, pair.minus.label], 17)
    title = f"{' minus '.join(names)}\n{changed.sum():,} of {tested:,} heads changed"
    dot = {"s": 2.0, "color": QUIET}
    marks = [Marked(np.argwhere(missing), "no value in one of the models", dot)]
    across, up = (Axis(label, whole=True) for label in ("query head", "layer"))
    return Grid(values, across, up, bar, marks=marks, title=title)


def _tests(pairs: Sequence[Pair]) -> str:
    """How heads that changed were found."""
    how = (
        "A head changed if a two-sided test of no difference (Student's t over groups of texts) is "
        f"significant at a false discovery rate of {100 * RATE:.0f} % by Benjamini and Hochberg, "
        "corrected for the number of heads of the map."
    )
    for paired, words in (
        (True, "On the same texts, compared text by text"),
        (False, "On other texts, as independent samples"),
    ):
        names = ", ".join(one.name for one in pairs if one.paired == paired)
        how += f" {words}: {names}." if names else ""
    return how
