"""The tables behind the figures of several models of a study."""

from __future__ import annotations

from collections.abc import Iterator

from attention_plasticity.family.depth import DEPTH_PARTS
from attention_plasticity.family.lengths import BY_FIFTH, BY_LENGTH, PHASE_DROP
from attention_plasticity.family.written import written_parts
from attention_plasticity.metrics import ALIGNED, ALIGNED_DROP, PHASE
from attention_plasticity.plots.shown import capitalised, column_label
from qk_study.study.results import StudyResults
from qk_study.study.study_table import StudyTable

FAMILY_NAMES = ("lengths", "depth")
"""Names of the tables that `family_tables` can make."""


def family_tables(results: StudyResults) -> Iterator[StudyTable]:
    """The tables that the runs of the study allow."""
    if not results.lengths.empty:
        yield _lengths(results)
    yield _depth(results)


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


def _depth(results: StudyResults) -> StudyTable:
    table, written = results.depth, {}
    parts = list(range(1, DEPTH_PARTS + 1))
    headings = [
        f"{100 * (part - 1) // DEPTH_PARTS}–{100 * part // DEPTH_PARTS} %" for part in parts
    ]
    for metric in results.map_metrics:
        rows = table[table["metric"] == metric]
        caption = f"{capitalised(column_label(metric))} by relative depth: means over heads."
        written[caption] = written_parts(rows, list(map(str, parts)), headings=headings)
    caption = "Means over heads by relative depth, of every metric, with 95 % intervals over texts."
    return StudyTable("depth", caption, table, written)
