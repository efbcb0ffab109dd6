"""A record of a head: rows of the tables as CSV text, and the values that run.json needs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attention_plasticity.measure.result import HeadResult
from attention_plasticity.metrics import HEAD_METRICS, IDS, TABLES, TableKind

_COLLECTED: dict[TableKind, tuple[str, ...]] = {
    "bins": ("q_bin", "n_queries", "n_texts", "plasticity"),
    "bucket_plasticity": ("q_bucket", "n_queries"),
    "influences": TABLES["influences"].names[len(IDS) :],
    "drift": TABLES["drift"].names[len(IDS) :],
    "roles": TABLES["roles"].names[len(IDS) + 2 :],  # without labels
}
"""Columns of which a record has the values: for run.json, and for the labels of roles."""


def head_record(result: HeadResult) -> dict[str, Any]:
    """The content of the record of a head. The rows of roles follow when the tables are written."""
    tables = {
        kind: {name: result.tables[kind][name] for name in names}
        for kind, names in _COLLECTED.items()
        if kind in result.tables
    }
    rows = {kind: table_rows(result, kind) for kind in TABLES if kind != "roles"}
    texts = {kind: csv_text(kind, own) for kind, own in rows.items()}
    return {
        **vars(result),
        "tables": tables,
        "rows": {k: text for k, text in texts.items() if text},
    }


def head_result(content: Mapping[str, Any]) -> HeadResult:
    """The result of a head from its record, with the columns that run.json needs."""
    return HeadResult(**{name: value for name, value in content.items() if name != "rows"})


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


def table_rows(result: HeadResult, kind: TableKind) -> Iterator[Sequence[Any]]:
    """The rows of a head in a table."""
    if kind == "head_metrics":
        yield [result.metrics[name] for name in HEAD_METRICS.names]
    elif kind in result.tables:
        columns = [result.tables[kind][name] for name in TABLES[kind].names[len(IDS) :]]
        for row in zip(*columns, strict=True):
            yield [result.layer, result.q_head, result.k_head, *row]
