"""The figure of the heads that two models have in common: a map per pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.compare.matched import RATE
from attention_plasticity.compare.runs import Pair
from attention_plasticity.figures.compose import Layout, compose
from attention_plasticity.figures.marks import Marked
from attention_plasticity.figures.model_words import model_words, short_names
from attention_plasticity.figures.shapes import Bar, Grid
from attention_plasticity.figures.style import (
    INK,
    QUIET,
    SIGNED,
    TEXT,
    Axis,
)
from attention_plasticity.metrics import label_of
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

_MOST_MAPS = 6


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
    bar = Bar(f"difference of {label_of(metric)}", -reach, reach, SIGNED)
    notes = ["white: no change detected", "grey dot: no value in one of the models"]
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
