"""The tables behind the figures of several models of a study."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attention_plasticity.comparison.tables import Cell, Line, WrittenTable
from attention_plasticity.family.depth import DEPTH_PARTS
from attention_plasticity.family.layer_kinds import BY_ATTENTION, BY_ROPE, has_two_kinds
from attention_plasticity.family.lengths import BY_FIFTH, BY_LENGTH, PHASE_DROP
from attention_plasticity.family.matched import matched_summary
from attention_plasticity.family.relations import p_words, relation_table, strength_words
from attention_plasticity.family.written import written_parts
from attention_plasticity.metrics import ALIGNED, ALIGNED_DROP, PHASE
from attention_plasticity.plots.shown import capitalised, column_label
from attention_plasticity.tables.names import clean
from qk_study.study.relations import StudyRelations
from qk_study.study.results import StudyResults
from qk_study.study.study_table import StudyTable

FAMILY_NAMES = (
    *("lengths", "depth", "relations", "trajectories", "layer_kinds"),
    *("matched_heads", "matched_counts"),
)
"""Names of the tables that `family_tables` can make."""


def family_tables(results: StudyResults) -> Iterator[StudyTable]:
    """The tables that the runs of the study allow."""
    if not results.lengths.empty:
        yield _lengths(results)
    yield _depth(results)
    if results.relations is not None:
        yield _relations(results, results.relations)
    if results.checkpoints:
        yield _trajectories(results)
    if any(has_two_kinds(results.layer_kinds, divided) for divided in (BY_ATTENTION, BY_ROPE)):
        yield _layer_kinds(results)
    if not results.matched.empty:
        yield from _matched(results)


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
    headings = [f"{100 * (part - 1) // DEPTH_PARTS}–{100 * part // DEPTH_PARTS}" for part in parts]
    for metric in results.map_metrics:
        rows = table[table["metric"] == metric]
        caption = f"{capitalised(column_label(metric))} by relative depth (%): means over heads."
        written[caption] = written_parts(rows, list(map(str, parts)), headings=headings, many=True)
    caption = "Means over heads by relative depth, of every metric, with 95 % intervals over texts."
    return StudyTable("depth", caption, table, written)


def _relations(results: StudyResults, found: StudyRelations) -> StudyTable:
    relations = found.relations
    lines = []
    for one in relations:
        cells = [Cell(str(one.models))]
        for strength in (one.pearson, one.spearman):
            if one.obstacle:
                cells += [Cell("–"), Cell("–"), Cell("–")]
                continue
            value, *interval = strength_words(strength).split(" ", 1)
            left = (strength.family_low, strength.family_high)
            without = "–" if math.isnan(left[0]) else f"{left[0]:.2f} to {left[1]:.2f}"
            p_value = p_words(strength.p_value).removeprefix("p ")
            cells += [Cell(value, "".join(interval)), Cell(p_value), Cell(without)]
        name = f"{column_label(one.metric)}, {one.score}"
        lines.append(Line(clean(name), "", tuple(cells)))
    headings = ["metric and score", "models"]
    for name in ("Pearson", "Spearman"):
        headings += [name, f"{name}: p", f"{name} without a family"]
    warnings = dict.fromkeys(one.warning for one in relations if one.warning)
    note = (
        "[ ]: 95 % bootstrap interval over models. p: permutation test. Without a family: range of "
        "the correlations when one family is left out."
    )
    few = "".join(f" {capitalised(text)}." for text in warnings)
    caption = f"Correlations of metrics with benchmark scores over models.{few}"
    written = WrittenTable("study", results.shown, tuple(headings), tuple(lines), note)
    return StudyTable("relations", caption, relation_table(relations), {caption: written})


def _trajectories(results: StudyResults) -> StudyTable:
    table, metrics = results.trajectories, results.map_metrics
    ordered = table[table["metric"].isin(metrics)].sort_values(
        ["family", "checkpoint"], kind="stable"
    )
    caption = "Means over heads of checkpoints, with 95 % intervals over texts."
    headings = [column_label(metric) for metric in metrics]
    written = written_parts(ordered, metrics, by="metric", headings=headings)
    return StudyTable("trajectories", caption, table, {caption: written})


def _layer_kinds(results: StudyResults) -> StudyTable:
    table, written = results.layer_kinds, {}
    words = {
        BY_ATTENTION: "layers with full attention and windows",
        BY_ROPE: "RoPE and NoPE layers",
    }
    for divided, kinds in words.items():
        if not has_two_kinds(table, divided):
            continue
        for metric in results.map_metrics:
            rows = table[(table["divided"] == divided) & (table["metric"] == metric)]
            parts = sorted(set(rows["kind"]), key=lambda kind: (" minus " in kind, kind))
            caption = f"{capitalised(column_label(metric))} of {kinds}: means over heads."
            written[caption] = written_parts(rows, parts, by="kind")
    caption = (
        "Means over the heads of layers with full attention and windows, and of RoPE and NoPE "
        "layers, with 95 % intervals over texts."
    )
    return StudyTable("layer_kinds", caption, table, written)


def _matched(results: StudyResults) -> Iterator[StudyTable]:
    yield StudyTable("matched_heads", "Differences of the same heads.", results.matched)
    summary = matched_summary(results.matched)
    headings = ("models", "heads", "tested", "changed", "risen", "fallen", "texts")
    written: dict[str, WrittenTable | None] = {}
    for metric in results.map_metrics:
        rows = summary[summary["metric"] == metric].to_dict("records")
        if not rows:
            continue
        lines = tuple(
            Line(
                clean(f"{row['run']} minus {row['minus']}"),
                "",
                (
                    *(Cell(f"{row[name]:,}") for name in headings[1:6]),
                    Cell("same" if row["paired"] else "other"),
                ),
            )
            for row in rows
        )
        note = (
            "Changed: Student's t over groups of texts, corrected for the number of heads, at a "
            "false discovery rate of 5 %."
        )
        caption = f"Heads whose {column_label(metric)} changed."
        written[caption] = WrittenTable("study", results.shown, headings, lines, note)
    yield StudyTable("matched_counts", "Numbers of heads that changed.", summary, written)
