"""Rows of the tables from the records of some heads, as text. Several workers make such parts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from attention_plasticity.measure.key_heads import KeyHeadRow, key_head_row
from attention_plasticity.measure.result import Columns, HeadResult
from attention_plasticity.metrics import HEAD_METRICS, IDS, KEY_HEADS, TABLES, TableKind
from attention_plasticity.run.records import head_result
from attention_plasticity.run.role_labels import with_label

_COLLECTED: dict[TableKind, tuple[str, ...]] = {
    "bins": ("q_bin", "n_queries", "n_texts", "plasticity"),
    "bucket_plasticity": ("q_bucket", "n_queries"),
    "influences": TABLES["influences"].names[len(IDS) :],
    "drift": TABLES["drift"].names[len(IDS) :],
}
"""Columns from which run.json is made."""


class TablePart(NamedTuple):
    """Rows of the tables of some heads, and what run.json needs of these heads."""

    rows: dict[TableKind, str]  # CSV text
    heads: list[HeadResult]  # with few columns of few tables
    key_heads: list[KeyHeadRow]


def table_part(records: Sequence[bytes], thresholds: Mapping[str, float]) -> TablePart:
    """The part of the tables from these records, which are in order. Damaged ones are left out.

    They have all query heads of their key heads. `thresholds` decide the roles of heads.
    """
    intact = [result for result in map(head_result, records) if result is not None]
    results = [with_label(result, thresholds) for result in intact]
    rows = {kind: csv_text(kind, _rows(kind, results)) for kind in TABLES}
    groups = groupby(results, key=lambda one: (one.layer, one.k_head))
    found = [key_head_row(list(members)) for _, members in groups]
    key_heads = [row for row in found if row is not None]
    values = [[row.values[name] for name in KEY_HEADS.names] for row in key_heads]
    rows["key_heads"] = csv_text("key_heads", values)
    return TablePart(rows, [_light(result) for result in results], key_heads)


def csv_text(kind: TableKind, rows: Iterable[Sequence[Any]]) -> str:
    """Rows as text. Floats have the shortest text that restores them exactly, or `nan`.

    Tokens are quoted: without quotes, a carriage return in a token would end the row.
    """
    file = io.StringIO()
    if kind == "words":
        csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(rows)
    else:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _rows(kind: TableKind, results: Iterable[HeadResult]) -> Iterator[Sequence[Any]]:
    """Rows of heads in a table."""
    for result in results:
        if kind == "head_metrics":
            yield [result.metrics[name] for name in HEAD_METRICS.names]
        elif kind in result.tables:
            columns = [result.tables[kind][name] for name in TABLES[kind].names[len(IDS) :]]
            for row in zip(*columns, strict=True):
                yield [result.layer, result.q_head, result.k_head, *row]


def _light(result: HeadResult) -> HeadResult:
    """The result with the columns that run.json needs."""
    tables: dict[str, Columns] = {
        kind: {name: result.tables[kind][name] for name in names}
        for kind, names in _COLLECTED.items()
        if kind in result.tables
    }
    return replace(result, tables=tables, key_head={})
