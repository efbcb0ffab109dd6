"""The tables behind the figures of several models of a study."""

from __future__ import annotations

from collections.abc import Iterator

from attention_plasticity.family.lengths import BY_FIFTH, BY_LENGTH, PHASE_DROP
from attention_plasticity.family.written import written_parts
from attention_plasticity.metrics import ALIGNED, ALIGNED_DROP, PHASE
from qk_study.study.results import StudyResults
from qk_study.study.study_table import StudyTable

FAMILY_NAMES = ("lengths",)
"""Names of the tables that `family_tables` can make."""


def family_tables(results: StudyResults) -> Iterator[StudyTable]:
    """The tables that the runs of the study allow."""
    if not results.lengths.empty:
        yield _lengths(results)


def _lengths(results: StudyResults) -> StudyTable:
    table = results.lengths
    words = {
        (BY_LENGTH, ALIGNED): "Plasticity at one position by length of the context",
        (BY_LENGTH, PHASE): "Rotary phase by length of the context",
        (BY_LENGTH, ALIGNED_DROP): "Drop of plasticity at one position by length of the context",
        (BY_LENGTH, PHASE_DROP): "Drop of rotary phase by length of the context",
        (BY_FIFTH, PHASE): "Rotary phase by fifths of the longest text",
    }
    written = {}
    for (divided, quantity), caption in words.items():
        rows = table[(table["divided"] == divided) & (table["quantity"] == quantity)]
        ordered = rows.sort_values(["end", "part"], kind="stable")["part"]
        parts = list(dict.fromkeys(ordered))
        unit = " K is 1,024 tokens." if divided == BY_LENGTH else ""
        written[f"{caption}: means over heads and positions.{unit}"] = written_parts(rows, parts)
    caption = (
        "Plasticity at one position, rotary phase and their drops by length of the context, and "
        "rotary phase by fifths of the longest text."
    )
    return StudyTable("lengths", caption, table, written)
