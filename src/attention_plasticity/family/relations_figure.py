"""Metrics against benchmark scores: one point per model, coloured by family."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from attention_plasticity.comparison.figures import MARKERS, ROUND_STEPS, legend_names
from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.panels import WIDE, finish, models_caption, panels
from attention_plasticity.family.relations import (
    BOOTSTRAPS,
    PERMUTATIONS,
    Points,
    Relation,
    Strength,
    p_words,
    strength_words,
)
from attention_plasticity.plots.intervals import whiskers
from attention_plasticity.plots.shown import column_label
from attention_plasticity.plots.style import FAINT, PALETTE, figure_style, figure_text, label_lines
from qk_toolkit.errors import ConfigError

_MOST_NAMED = 16  # models of a legend; with more, it has the families
_HEIGHT = 3.0  # inches of a panel
_MOST_PANELS = 12
_NO_FAMILY = "no family"
_HOW = (
    f"[ ]: 95 % bootstrap interval of {BOOTSTRAPS:,} draws of models; p: two-sided permutation "
    f"test, all orders of at most 7 models, else {PERMUTATIONS:,} random orders. Both treat models "
    "as independent. The range without a family is that of the correlations when one family is "
    "left out."
)


def relations_figure(
    relations: Sequence[Relation],
    metrics: Mapping[str, Points],
    scores: Mapping[str, Points],
    runs: Sequence[ComparedRun],
    families: Sequence[str],
    *,
    width: float = WIDE,
) -> Figure:
    """Draw one panel per relation, at most 12.

    `families` has the family of every run, or an empty text.
    """
    if not relations:
        raise ConfigError("relations: no score and metric are known, so there is nothing to draw")
    looks = point_looks(families)
    shown = relations[:_MOST_PANELS]
    further = len(relations) - len(shown)
    with figure_style():
        figure, places = panels(len(shown), width, _HEIGHT)
        for axes, found in zip(places, shown, strict=True):
            x, y = metrics[found.metric], scores[found.score]
            _draw(axes, x, y, looks)
            axes.set_xlabel(label_lines(column_label(found.metric), 2.3))
            axes.set_ylabel(label_lines(figure_text(found.score), 1.6))
            axes.set_title("\n".join(_title(found)), fontweight="normal", fontsize=8)
        handles = _legend([run.label for run in runs], families, looks)
        notes = [
            "whiskers: 95 % intervals, over texts (metric) and from the standard error (score)"
        ]
        if further:
            notes.append(f"{further} further panels are left out; the table relations has them")
        warnings = list(dict.fromkeys(one.warning for one in relations if one.warning))
        caption = models_caption(_what(families), runs, [_HOW], warnings)
        title = "Metrics against benchmark scores"
        return finish(figure, title, [*notes, *warnings], handles, caption)


def _what(families: Sequence[str]) -> str:
    named = list(dict.fromkeys(name for name in families if name))
    listed = f" Colours are families: {', '.join(named)}." if named else ""
    return f"Means over heads against benchmark scores, one point per model.{listed}"


def point_looks(families: Sequence[str]) -> list[dict[str, Any]]:
    """Colour by family, and a marker of its own for every model of a family."""
    names, seen, looks = list(dict.fromkeys(families)), dict.fromkeys(families, 0), []
    for family in families:
        colour = PALETTE[names.index(family) % len(PALETTE)]
        shift = names.index(family) // len(PALETTE)  # more families than colours
        marker = MARKERS[(seen[family] + shift) % len(MARKERS)]
        looks.append({"color": colour, "marker": marker})
        seen[family] += 1
    return looks


def _draw(axes: Axes, x: Points, y: Points, looks: Sequence[dict[str, Any]]) -> None:
    for place, look in enumerate(looks):
        one = slice(place, place + 1)
        point = x.values[one], y.values[one]
        whiskers(axes, *point, x.halves[one], look["color"], horizontal=True, cap=2.0)
        whiskers(axes, *point, y.halves[one], look["color"], cap=2.0)
        axes.plot(*point, linestyle="", markersize=5, **look)
    axes.margins(0.1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, steps=ROUND_STEPS, min_n_ticks=3))
    axes.grid(color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)


def _title(found: Relation) -> list[str]:
    if found.obstacle:
        return [f"{found.obstacle}: no correlation"]
    lines = [f"{name} {_words(one)}" for name, one in zip(_NAMES, _strengths(found), strict=True)]
    if not math.isnan(found.spearman.family_low):
        low, high = found.spearman.family_low, found.spearman.family_high
        lines.append(f"Spearman without a family: {low:.2f} to {high:.2f}")
    return lines


_NAMES = ("Pearson", "Spearman")


def _strengths(found: Relation) -> tuple[Strength, Strength]:
    return found.pearson, found.spearman


def _words(one: Strength) -> str:
    """`0.71 [-0.20, 0.95], p 0.031`."""
    return f"{strength_words(one)}, {p_words(one.p_value)}"


def _legend(
    labels: Sequence[str], families: Sequence[str], looks: Sequence[dict[str, Any]]
) -> list[Line2D]:
    if len(labels) <= _MOST_NAMED:
        named = list(zip(legend_names(labels), looks, strict=True))
    else:
        first = {family: looks[families.index(family)] for family in families}
        named = [(figure_text(name or _NO_FAMILY), look) for name, look in first.items()]
    return [Line2D([], [], linestyle="", markersize=5, label=name, **look) for name, look in named]
