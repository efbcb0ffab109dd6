"""Figures of several models with a map per pair, or a point per model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.special import ndtri

from attention_plasticity.compare.correlations import (
    BOOTSTRAPS,
    PERMUTATIONS,
    interval_words,
    p_words,
)
from attention_plasticity.compare.matched import RATE
from attention_plasticity.compare.runs import NamedRun, Pair
from attention_plasticity.figures.captions import capitalised, column_label
from attention_plasticity.figures.compose import Layout, compose
from attention_plasticity.figures.marks import Marked
from attention_plasticity.figures.model_words import half_widths, model_words, short_names
from attention_plasticity.figures.of_models import MARKERS
from attention_plasticity.figures.shapes import Bar, Grid, Line, Lines
from attention_plasticity.figures.style import (
    INK,
    PALETTE,
    QUIET,
    SIGNED,
    TEXT,
    Axis,
    figure_text,
    share_axis,
)
from attention_plasticity.tables.intervals import LEVEL
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

_MOST_MAPS = 6
_MOST_PANELS = 12
_MOST_NAMED = 16  # models of a legend; with more, it has the families
_HOW = (
    f"[ ]: 95 % bootstrap interval of {BOOTSTRAPS:,} draws of models; p: two-sided permutation "
    f"test, all orders of at most 7 models, else {PERMUTATIONS:,} random orders. Both treat models "
    "as independent. The range without a family is that of the correlations when one family is "
    "left out."
)


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
    shown = known[:_MOST_MAPS]
    changes = pd.concat([rows[rows["changed"].astype(bool)] for _, rows in shown])["difference"]
    reach = float(changes.abs().max()) if len(changes) else 1.0
    bar = Bar(f"difference of {column_label(metric)}", -reach, reach, SIGNED)
    notes = ["white: no change detected", "grey dot: no value in one of the models"]
    if further := len(known) - len(shown):
        notes.append(f"{count(further, 'further pair')} in the table matched_heads")
    drawn = [pair for pair, _ in shown]
    words = model_words(
        "Heads that changed",
        f"Difference of {column_label(metric)} of the same head in two models, one map per pair, "
        "for the heads that changed. White: no change detected. Grey dots: no value in one of the "
        "models.",
        list({run.label: run for pair in drawn for run in pair}.values()),
        [_tests(drawn)],
        notes,
        intervals=False,
    )
    panels = [_map(pair, rows, bar) for pair, rows in shown]
    return compose(panels, words, width=width, layout=Layout(2.2, least=2.0))


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
    dot: Any = {"s": 5.0, "color": INK, "edgecolors": "white", "linewidths": 0.3}
    marks = [
        Marked(np.column_stack([layers, heads])[changed], "changed", dot),
        Marked(np.argwhere(missing), None, {"s": 2.0, "color": QUIET}),
    ]
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
    looks, labels = _looks(runs), [one.label for one in runs]
    own = means[means["minus"] == ""]
    panels = []
    for (metric, score), rows in relations.groupby(["metric", "score"], sort=False):
        of_runs = own[own["metric"] == metric].set_index("run").reindex(labels)
        x, reach = of_runs["mean"].to_numpy(np.float64), half_widths(of_runs)
        y = _column(scores, str(score), labels)
        half = float(ndtri(0.5 + LEVEL / 2.0)) * _column(errors, str(score), labels)
        points = [
            Line(x[[n]], y[[n]], half[[n]], x_half=reach[[n]], dashes="none", whiskers=True, **look)
            for n, look in enumerate(looks)
        ]
        across, up = share_axis(column_label(str(metric))), share_axis(str(score))
        panels.append(Lines(across, up, points, title=_title(rows)))
    shown = panels[:_MOST_PANELS]
    notes = ["whiskers: 95 % intervals, over texts (metric) and from the standard error (score)"]
    if further := len(panels) - len(shown):
        notes.append(f"{further} further panels are left out; the table relations has them")
    warnings = [text for text in dict.fromkeys(relations["note"]) if text]
    named = ", ".join(dict.fromkeys(one.family for one in runs if one.family))
    shows = "Means over heads against benchmark scores, one point per model."
    shows += f" Colours are families: {named}." if named else ""
    details = [_HOW, *(f"{capitalised(text)}." for text in warnings)]
    title = "Metrics against benchmark scores"
    words = model_words(title, shows, runs, details, [*notes, *warnings], intervals=False)
    return compose(shown, words, width=width, layout=Layout(height=2.3, least=3.0))


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


def _looks(runs: Sequence[NamedRun]) -> list[dict[str, Any]]:
    """Colour by family, a marker of its own for every model of a family, words of the legend.

    With many models, the legend has the families.
    """
    families = [one.family for one in runs]
    names, seen, looks = list(dict.fromkeys(families)), dict.fromkeys(families, 0), []
    labels = short_names([one.label for one in runs], 44)
    if len(runs) > _MOST_NAMED:
        labels = [family or "no family" for family in families]
    for family, label in zip(families, labels, strict=True):
        place = names.index(family)
        shift = place // len(PALETTE)  # more families than colours
        marker = MARKERS[(seen[family] + shift) % len(MARKERS)]
        colour = PALETTE[place % len(PALETTE)]
        looks.append({"colour": colour, "marker": marker, "label": figure_text(label)})
        seen[family] += 1
    return looks
