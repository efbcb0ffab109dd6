"""The tables of plasticity and of key heads for readers, from the summary of several runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd

from attention_plasticity.compare.writers import Table, summary_table
from attention_plasticity.tables.main_plasticity import (
    FIFTH_WORDS,
    PART_WORDS,
    PlasticityColumns,
)

_KEY_HEADS = {
    "static_error": "static error",
    "attended_static_error": "attended",
    "plasticity": "plasticity",
    "aligned_plasticity": "RoPE-aligned plasticity",
    "far_mass": "far",
    "received_gini": "Gini",
}
_KEY_HEADS_NOTE = (
    "Static error: share of later queries of a group whose preferred key the majority of the "
    "others does not predict. attended: the same for keys in proportion to attention. far: far "
    "attention without the first tokens. Gini: concentration of received attention."
)
_DIFFERENCES_NOTE = (
    "Runs on the same texts are compared text by text; runs on other texts are independent samples."
)


def headings_of(shown: PlasticityColumns) -> dict[str, str]:
    """The columns of one kind of plasticity, and their headings."""
    headings = {shown.level: "plasticity"}
    if shown.drop is not None:
        headings |= {**dict(zip(shown.fifths, FIFTH_WORDS, strict=True)), shown.drop: "drop"}
        headings |= dict(zip(shown.parts, PART_WORDS, strict=True))
    return headings


def plasticity_tables(
    means: pd.DataFrame, layer_types: pd.DataFrame, shown: PlasticityColumns
) -> Iterator[Table]:
    """Means, differences from the first run, and means by types of layers, where they are known.

    `means` is the summary over all heads, and `layer_types` that by types of layers.
    """
    headings = headings_of(shown)
    frame = rows_of(means, headings)
    levels, differences = frame[frame["minus"] == ""], frame[frame["minus"] != ""]
    if levels.empty:
        return
    what = f"{shown.title}: mean over heads."
    yield summary_table(levels, what, headings=headings, form="half")
    known = differences[differences["se"].notna()]
    if not known.empty:
        what = f"{shown.title}: differences from {known['minus'].iloc[0]}."
        yield summary_table(known, what, headings=headings, note=_DIFFERENCES_NOTE)
    types = rows_of(layer_types, headings)
    own = types[types["minus"] == ""]
    if not own.empty:
        lines = own.assign(run=own["run"] + " · " + own["group"])
        what = f"{shown.title} by types of layers: mean over heads."
        yield summary_table(lines, what, headings=headings, form="half")


def key_heads_table(frame: pd.DataFrame) -> Table:
    """The means over key heads for readers."""
    names = {name: words for name, words in _KEY_HEADS.items() if name in set(frame["metric"])}
    note, caption = _KEY_HEADS_NOTE, "Means over key heads."
    return summary_table(rows_of(frame, names), caption, headings=names, form="half", note=note)


def rows_of(frame: pd.DataFrame, metrics: Iterable[str]) -> pd.DataFrame:
    """The rows of some metrics."""
    return frame[frame["metric"].isin(list(metrics))]
