"""Metrics against benchmark scores: one point per model, coloured by family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.special import ndtri

from attention_plasticity.compare.correlations import (
    BOOTSTRAPS,
    PERMUTATIONS,
    interval_words,
    p_words,
)
from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.figures.captions import capitalised, column_label
from attention_plasticity.figures.marks import Entry
from attention_plasticity.figures.model_panels import (
    MARKERS,
    Point,
    Points,
    half_widths,
    model_words,
    short_names,
)
from attention_plasticity.figures.shapes import Layout, compose
from attention_plasticity.figures.style import PALETTE, TEXT, figure_text, share_axis
from attention_plasticity.tables.intervals import LEVEL
from qk_toolkit.errors import ConfigError

MOST_PANELS = 12
_MOST_NAMED = 16  # models of a legend; with more, it has the families
_HOW = (
    f"[ ]: 95 % bootstrap interval of {BOOTSTRAPS:,} draws of models; p: two-sided permutation "
    f"test, all orders of at most 7 models, else {PERMUTATIONS:,} random orders. Both treat models "
    "as independent. The range without a family is that of the correlations when one family is "
    "left out."
)


def relations_figure(
    relations: pd.DataFrame,
    means: pd.DataFrame,
    scores: pd.DataFrame,
    runs: Sequence[NamedRun],
    errors: pd.DataFrame | None = None,
    *,
    width: float = TEXT,
) -> Figure:
    """Draw one panel per metric and score of `correlations`, at most 12.

    `means` is the summary of the runs, `scores` the table of scores, and `errors` the standard
    errors of scores in the same form, NaN where they are not known.
    """
    if relations.empty:
        raise ConfigError("relations: no score and metric are known, so there is nothing to draw")
    groups = relations.groupby(["metric", "score"], sort=False)
    looks, labels = _looks([one.family for one in runs]), [one.label for one in runs]
    own = means[means["minus"] == ""]
    panels = []
    for (metric, score), rows in groups:
        x = own[own["metric"] == metric].set_index("run").reindex(labels)
        ends = x["mean"].to_numpy(np.float64), half_widths(x)
        up = _column(scores, str(score), labels)
        halves = float(ndtri(0.5 + LEVEL / 2.0)) * _column(errors, str(score), labels)
        points = [
            Point(*numbers, **style)
            for *numbers, style in zip(ends[0], up, ends[1], halves, looks, strict=True)
        ]
        across = share_axis(column_label(str(metric)))
        panels.append(Points(across, share_axis(str(score)), points, _title(rows)))
    shown = panels[:MOST_PANELS]
    notes = ["whiskers: 95 % intervals, over texts (metric) and from the standard error (score)"]
    if further := len(panels) - len(shown):
        notes.append(f"{further} further panels are left out; the table relations has them")
    warnings = [text for text in dict.fromkeys(relations["note"]) if text]
    named = list(dict.fromkeys(one.family for one in runs if one.family))
    listed = f" Colours are families: {', '.join(named)}." if named else ""
    shows = f"Means over heads against benchmark scores, one point per model.{listed}"
    details = [_HOW, *(f"{capitalised(text)}." for text in warnings)]
    title = "Metrics against benchmark scores"
    words = model_words(title, shows, runs, details, [*notes, *warnings])
    layout = Layout(height=2.3, least=3.0, entries=_legend(runs, looks))
    return compose(shown, words, width=width, layout=layout)


def _column(table: pd.DataFrame | None, name: str, labels: Sequence[str]) -> Any:
    """(models,) a column of a table of scores."""
    if table is None:
        return np.full(len(labels), np.nan)
    return table.set_index("model").reindex(list(labels))[name].to_numpy(np.float64)


def _title(rows: pd.DataFrame) -> str:
    if rows["value"].isna().all():
        return f"{rows['note'].iloc[0]}: no correlation"
    lines = [
        f"{row['coefficient'].capitalize()} "
        f"{interval_words(row['value'], row['low'], row['high'])}, {p_words(row['p_value'])}"
        for row in rows.to_dict("records")
    ]
    low, high = rows["family_low"].iloc[-1], rows["family_high"].iloc[-1]
    if not math.isnan(low):
        lines.append(f"Spearman without a family {low:.2f} to {high:.2f}")
    return "\n".join(lines)


def _looks(families: Sequence[str]) -> list[dict[str, Any]]:
    """Colour by family, and a marker of its own for every model of a family."""
    names, seen, looks = list(dict.fromkeys(families)), dict.fromkeys(families, 0), []
    for family in families:
        place = names.index(family)
        shift = place // len(PALETTE)  # more families than colours
        marker = MARKERS[(seen[family] + shift) % len(MARKERS)]
        looks.append({"colour": PALETTE[place % len(PALETTE)], "marker": marker})
        seen[family] += 1
    return looks


def _legend(runs: Sequence[NamedRun], looks: Sequence[dict[str, Any]]) -> list[Entry]:
    named = list(zip(short_names([one.label for one in runs], 44), looks, strict=True))
    if len(runs) > _MOST_NAMED:
        families = [one.family for one in runs]
        first = {family: looks[families.index(family)] for family in families}
        named = [(name or "no family", style) for name, style in first.items()]
    point: dict[str, Any] = {"linestyle": "", "markersize": 4.0}
    return [
        (
            Line2D([], [], color=style["colour"], marker=style["marker"], **point),
            figure_text(name),
        )
        for name, style in named
    ]
