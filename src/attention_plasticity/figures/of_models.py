"""Figures of several runs, drawn from the tables of their summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from attention_plasticity.compare.bands import wavelengths
from attention_plasticity.compare.groups import DEPTHS
from attention_plasticity.compare.lengths import PHASE_DROP, part_start
from attention_plasticity.compare.matched import RATE
from attention_plasticity.compare.runs import NamedRun, Pair, main_of
from attention_plasticity.compare.summary import summary
from attention_plasticity.figures.captions import capitalised, column_label, phase_sentence
from attention_plasticity.figures.model_panels import (
    INTERVALS,
    Changed,
    Stack,
    StackedRows,
    group_axis,
    half_widths,
    interval_line,
    lines_of,
    lines_over_groups,
    look,
    model_words,
    require_rows,
    short_names,
)
from attention_plasticity.figures.shapes import Bar, DotRows, Dots, Grid, Layout, Lines, compose
from attention_plasticity.figures.style import (
    FAINT,
    SIGNED,
    TEXT,
    Axis,
    figure_text,
    share_axis,
)
from attention_plasticity.metrics import ALIGNED, ALIGNED_DROP, PHASE
from attention_plasticity.roles import NAMES
from attention_plasticity.tables.head_roles import COLOURS
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

MOST_MAPS = 6
_PANEL = Layout(height=1.9, least=2.9)
_DROPS = (ALIGNED_DROP, PHASE_DROP)
_MISSING = "#d9d9d9"  # heads without a value
_POSITIONS = (
    "A value is the mean over the heads of a model and over positions: over the bins of queries "
    "whose middle is in the part."
)
_NO_VALUE = (
    "A part without a value has no bin of queries with an earlier bin of keys, or no text reaches "
    "it; shorter bins give values to shorter lengths."
)


def profiles_figure(runs: Sequence[NamedRun], *, width: float = TEXT) -> Figure:
    """Draw the mean profile of every run over positions.

    Examples:
        >>> from attention_plasticity import compare_runs, open_run
        >>> run = open_run("results/sample")
        >>> parts = [run.select(layers=[0]), run.select(layers=[29])]
        >>> figure = compare_runs(parts, labels=["first", "last"]).plot()
        >>> figure.axes[0].get_xlabel()
        'query position (tokens)'
    """
    shown = main_of(runs)
    frame = summary(runs, "bin", pairs=[])
    frame = frame[frame["metric"] == shown.level].reset_index(drop=True)
    require_rows(frame, "profiles")
    lines = lines_of(frame, [one.label for one in runs], [float(x) for x in frame["group"]])
    panel = Lines(Axis("query position (tokens)", scale="positions"), share_axis(shown.name), lines)
    title = f"{capitalised(shown.name)}, over the context"
    shows = f"{capitalised(shown.name)}, by query position: the mean over heads, one line per run."
    words = model_words(
        title,
        f"{shows} {phase_sentence(shown)}",
        runs,
        notes=[interval_line(frame, "bands")],
    )
    return compose([panel], words, width=width, layout=Layout(height=2.3))


def lengths_figure(
    frame: pd.DataFrame, runs: Sequence[NamedRun], by: str = "length", *, width: float = TEXT
) -> Figure:
    """Draw plasticity, phase and their drops by length of the context (`by` `length`).

    With `by` `fifth`, rotary phase and its drop by fifths of the longest text. `frame` is the
    summary by length, or by fifth.
    """
    labels = [one.label for one in runs]
    metrics = (ALIGNED, PHASE, *_DROPS) if by == "length" else (PHASE, PHASE_DROP)
    own = frame[(frame["by"] == by) & (frame["minus"] == "") & frame["run"].isin(labels)]
    own = own[own["metric"].isin(metrics)]
    require_rows(own, "lengths")
    labels = [label for label in labels if label in set(own["run"])]
    groups = sorted(set(own["group"]), key=part_start)
    below = "position (tokens)" if by == "length" else "part of the longest text"
    panels = [
        Lines(
            group_axis(below, groups),
            share_axis(_length_label(name), zero=name in _DROPS),
            lines_over_groups(rows, labels, groups),
        )
        for name in metrics
        if len(rows := own[own["metric"] == name])
    ]
    title = "Rotary phase, by fifths of the longest text"
    if by == "length":
        title = "Plasticity at one position and rotary phase, by length of the context"
    missing = [one.label for one in runs if one.label not in labels]
    without = f"No plasticity at one position: {', '.join(missing)}." if missing else ""
    details, notes = [INTERVALS, _NO_VALUE, without], [interval_line(own, "whiskers")]
    words = model_words(title, _length_sentences(own, by), runs, details, notes)
    return compose(panels, words, width=width, layout=_PANEL)


def _length_label(metric: str) -> str:
    return "drop of rotary phase" if metric == PHASE_DROP else column_label(metric)


def _length_sentences(frame: pd.DataFrame, by: str) -> str:
    phase = "rotary phase (plasticity over a bin minus plasticity at one position)"
    if by == "fifth":
        return (
            f"{capitalised(phase)} by fifths of the longest text, one line per run. {_POSITIONS} A "
            "drop is the value in the first fifth minus the value in this fifth."
        )
    what = (
        f"Plasticity at one position, {phase}, and the drops of both by length of the context, one "
        f"line per run. {_POSITIONS} K is 1,024 tokens."
    )
    parts = {name: set(frame[frame["metric"] == name]["group"]) for name in (ALIGNED, ALIGNED_DROP)}
    first = sorted(parts[ALIGNED] - parts[ALIGNED_DROP], key=part_start)
    if parts[ALIGNED_DROP] and first:
        what += f" A drop is the value at {first[-1]} minus the value at this length."
    return what


def depth_figure(frame: pd.DataFrame, runs: Sequence[NamedRun], *, width: float = TEXT) -> Figure:
    """Draw the means by tenths of the depth, a line with a band per run and a panel per metric."""
    own = frame[frame["minus"] == ""]
    require_rows(own, "depth")
    metrics = list(dict.fromkeys(own["metric"]))
    labels = [one.label for one in runs if one.label in set(own["run"])]
    middle = {group: 10.0 * place + 5.0 for place, group in enumerate(DEPTHS)}  # per cent
    places = [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    across = Axis("relative depth (%)", 0.0, 100.0, ticks=(places, [f"{x:g}" for x in places]))
    panels = [
        Lines(
            across,
            share_axis(column_label(metric), zero=metric == ALIGNED_DROP),
            lines_of(rows, labels, rows["group"].map(middle).tolist()),
        )
        for metric in metrics
        for rows in [own[own["metric"] == metric]]
    ]
    shows = (
        "Mean over heads by relative depth, one line per run: the layers of a model are divided "
        "into ten equal parts of its depth, and a layer belongs to the part that has its middle. A "
        "model with fewer layers has in each part the layer at the middle of the part. Shown: "
        f"{', '.join(map(column_label, metrics))}."
    )
    notes = [interval_line(own, "bands")]
    words = model_words("Means over heads, by relative depth", shows, runs, notes=notes)
    return compose(panels, words, width=width, layout=_PANEL)


def kinds_figure(frame: pd.DataFrame, runs: Sequence[NamedRun], *, width: float = TEXT) -> Figure:
    """Draw means by kinds of layers: a row per run, a point per kind, a panel per metric."""
    own = frame[frame["minus"] == ""]
    require_rows(own, "layers")
    labels = [one.label for one in runs if one.label in set(own["run"])]
    names = [figure_text(name) for name in short_names(labels, 18)]
    kinds, metrics = sorted(set(own["group"])), list(dict.fromkeys(own["metric"]))
    shifts = np.linspace(-0.2, 0.2, len(kinds)).tolist() if len(kinds) > 1 else [0.0]
    colours = [look(number, len(kinds))["colour"] for number in range(len(kinds))]
    panels = []
    for metric in metrics:
        dots = []
        for kind, shift, colour in zip(kinds, shifts, colours, strict=True):
            chosen = (own["metric"] == metric) & (own["group"] == kind)
            rows = own[chosen].set_index("run").reindex(labels)
            values, halves = rows["mean"].to_numpy(np.float64), half_widths(rows)
            dots += [
                Dots(place + shift, np.empty(0), float(value), float(half), colour)
                for place, (value, half) in enumerate(zip(values, halves, strict=True))
            ]
        lines = [place + 0.5 for place in range(len(labels) - 1)]
        panels.append(DotRows(share_axis(column_label(metric)), names, dots, lines))
    style: Any = {"linestyle": "", "marker": "D", "markersize": 3.0}
    entries = [
        (Line2D([], [], color=colour, **style), kind)
        for kind, colour in zip(kinds, colours, strict=True)
    ]
    words = model_words(
        f"Means over heads, by layers: {' and '.join(kinds)}",
        f"Means over the heads of layers of each kind ({', '.join(kinds)}), one row per run. The "
        "table of the same name has the differences of two kinds, with intervals.",
        runs,
        notes=[interval_line(own, "whiskers")],
    )
    layout = Layout(height=0.6 + 0.24 * max(2, len(labels)), least=2.9, entries=entries)
    return compose(panels, words, width=width, layout=layout)


def roles_figure(counts: pd.DataFrame, runs: Sequence[NamedRun], *, width: float = TEXT) -> Figure:
    """Draw the shares of heads of each role from `role_counts`: one bar per run."""
    if counts.empty:
        raise ConfigError("roles: no run has the table of roles, so there is nothing to draw")
    labels = [one.label for one in runs if one.label in set(counts["run"])]
    sure, likely = (
        counts.assign(share=100.0 * counts[name] / counts["heads"])
        .pivot(index="run", columns="role", values="share")
        .reindex(labels)
        for name in ("sure", "likely")
    )
    parts = [
        Stack(role, COLOURS[role], own, likely[role].to_numpy(np.float64) - own)
        for role in NAMES
        if (likely[role] > 0).any()
        for own in [sure[role].to_numpy(np.float64)]
    ]
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
    )
    panel = StackedRows(Axis("share of heads (%)", 0.0, 100.0), names, parts)
    layout = Layout(height=0.6 + 0.22 * len(labels))
    return compose([panel], words, width=width, layout=layout)


def bands_figure(frame: pd.DataFrame, runs: Sequence[NamedRun], *, width: float = TEXT) -> Figure:
    """Draw shares by eighths of the rotary bands and, if there are pairs, their differences."""
    means, differences = frame[frame["minus"] == ""], frame[frame["minus"] != ""]
    require_rows(means, "bands")
    groups = list(dict.fromkeys(means["group"]))
    labels = [one.label for one in runs]
    across = group_axis("eighth of the rotary bands", groups)
    own = lines_over_groups(means, labels, groups)
    panels = [Lines(across, share_axis("share of the variance", zero=True), own)]
    details = [INTERVALS]
    if found := {one.label: wavelengths(one.run).values() for one in runs}:
        listed = "; ".join(
            f"{label}: {', '.join(f'{low:,.0f}–{high:,.0f}' for low, high in ends)}"
            for label, ends in found.items()
            if ends
        )
        details.append(f"Wavelengths of the eighths in tokens: {listed}.")
    if len(differences):
        others = list(dict.fromkeys(differences["minus"]))
        minus = others[0] if len(others) == 1 else "the first of the family"
        up = share_axis(f"difference from {minus}", zero=True)
        panels.append(Lines(across, up, lines_over_groups(differences, labels, groups)))
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
    return compose(panels, words, width=width, layout=_PANEL)


def matched_figure(
    matched: pd.DataFrame, pairs: Sequence[Pair], metric: str, *, width: float = TEXT
) -> Figure:
    """Draw one map per pair, for one metric of `matched_heads`; at most six pairs.

    Only heads that changed are coloured; layer 0 is at the top.
    """
    own = matched[matched["metric"] == metric]
    tables = [
        (pair, own[(own["run"] == pair.run.label) & (own["minus"] == pair.minus.label)])
        for pair in pairs
    ]
    known = [(pair, rows) for pair, rows in tables if len(rows)]
    if not known:
        raise ConfigError("matched heads: no two models have the same heads with values")
    shown = known[:MOST_MAPS]
    changes = pd.concat([rows[rows["changed"].astype(bool)] for _, rows in shown])["difference"]
    reach = float(changes.abs().max()) if len(changes) else 1.0
    bar = Bar(f"difference of {column_label(metric)}", -reach, reach, SIGNED)
    panels = [_map(pair, rows, bar) for pair, rows in shown]
    same = Patch(facecolor="white", edgecolor=FAINT, linewidth=0.6)
    entries = [(same, "no change detected"), (Patch(facecolor=_MISSING), "no value")]
    further, notes = len(known) - len(shown), []
    if further:
        notes.append(f"{count(further, 'further pair')} in the table matched_heads")
    drawn = [pair for pair, _ in shown]
    words = model_words(
        "Heads that changed",
        f"Difference of {column_label(metric)} of the same head in two models, one map per pair, "
        "for the heads that changed. White: no change detected. Grey: no value in one of the "
        "models.",
        list({run.label: run for pair in drawn for run in pair}.values()),
        [_tests(drawn)],
        notes,
    )
    return compose(panels, words, width=width, layout=Layout(2.2, least=2.0, entries=entries))


def _map(pair: Pair, rows: pd.DataFrame, bar: Bar) -> Grid:
    """The colours of all heads of a pair."""
    layers, heads = (rows[name].to_numpy(np.int64) for name in ("layer", "q_head"))
    changed = rows["changed"].to_numpy(bool)
    shape = layers.max() + 1, heads.max() + 1
    colours = np.tile(to_rgb(_MISSING), (*shape, 1))  # (layers, heads, rgb)
    colours[layers, heads] = 1.0
    values = rows["difference"].to_numpy(np.float64)[changed]
    colours[layers[changed], heads[changed]] = bar.colours.to_rgba(values)[:, :3]
    tested = int(rows["p_value"].notna().sum())
    names = short_names([pair.run.label, pair.minus.label], 17)
    title = f"{' minus '.join(names)}\n{changed.sum():,} of {tested:,} heads changed"
    marks = [Changed(np.column_stack([layers, heads])[changed])]
    across, up = (Axis(label, whole=True) for label in ("query head", "layer"))
    return Grid(colours, across, up, bar, marks=marks, title=title)


def _tests(pairs: Sequence[Pair]) -> str:
    """How heads that changed were found."""
    names = {
        paired: ", ".join(one.name for one in pairs if one.paired == paired)
        for paired in (True, False)
    }
    how = (
        "A head changed if a two-sided test of no difference (Student's t over groups of texts) is "
        f"significant at a false discovery rate of {100 * RATE:.0f} % by Benjamini and Hochberg, "
        "corrected for the number of heads of the map."
    )
    if names[True]:
        how += f" On the same texts, compared text by text: {names[True]}."
    if names[False]:
        how += f" On other texts, as independent samples: {names[False]}."
    return how
