"""Which plasticity a figure shows: at one position, or over a bucket."""

from __future__ import annotations

import pandas as pd

from attention_plasticity.metrics import ALIGNED_COUNTED, ALIGNED_DROP, METRICS
from attention_plasticity.plots.settings import Shown
from attention_plasticity.tables.bin_cells import has_bins
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    FIFTH_WORDS,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity,
)
from qk_toolkit.errors import ConfigError

NONE_AT_ONE_POSITION = (
    "has no plasticity at one position; it needs the rotary records of the dump: "
    "attention-plasticity add-rotary, and analyze again"
)
_LABELS = {
    AT_ONE_POSITION.level: AT_ONE_POSITION.name,
    **{
        column: f"{AT_ONE_POSITION.name}, {fifth}"
        for column, fifth in zip(AT_ONE_POSITION.fifths, FIFTH_WORDS, strict=True)
    },
    ALIGNED_DROP: f"drop of {AT_ONE_POSITION.name}",
    ALIGNED_COUNTED: f"counted {AT_ONE_POSITION.name}",
    OVER_BUCKETS.level: OVER_BUCKETS.name,
}
"""Labels that say which plasticity a column is."""


def shown_plasticity(metrics: pd.DataFrame, asked: Shown | None) -> PlasticityColumns:
    """The columns that a figure of heads shows; by default at one position, if a head has it."""
    main = main_plasticity(metrics)
    if asked == "position" and main is OVER_BUCKETS:
        raise ConfigError(f"the table of heads: {NONE_AT_ONE_POSITION}")
    return OVER_BUCKETS if asked == "bucket" else main


def phase_note(shown: PlasticityColumns) -> str | None:
    """The note below a figure of plasticity over a bucket."""
    return "over a bucket: with rotary phase" if shown is OVER_BUCKETS else None


def phase_sentence(shown: PlasticityColumns) -> str:
    """The sentence of a caption: whether the rotation of RoPE counts, if the model has RoPE."""
    if shown is OVER_BUCKETS:
        return "Queries are compared as captured, so rotary phase counts."
    return "Queries are compared at one position of their bin, so rotary phase does not count."


def first_part_sentence(cells: pd.DataFrame, part: str) -> str | None:
    """Why the first bin or bucket has no value; None if it has one. `part` is the word for it."""
    known = cells[cells["plasticity"].notna()]
    if known["q_bucket"].min() <= known["k_bucket"].min():
        return None
    return f"The first {part} has no value, because no {part} of keys comes before it."


def parts_of(cells: pd.DataFrame) -> tuple[PlasticityColumns, str]:
    """What a table of cells or bins has, and the word for a part of the positions."""
    return (AT_ONE_POSITION, "bin") if has_bins(cells) else (OVER_BUCKETS, "bucket")


def column_label(metric: str) -> str:
    """A column of the table of heads in words."""
    words = METRICS.get(metric)
    return _LABELS.get(metric) or (words.label if words else metric)


def capitalised(text: str) -> str:
    """The text with a first capital letter."""
    return text[:1].upper() + text[1:]
