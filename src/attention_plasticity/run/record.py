"""The record of a finished key head: what the tables and run.json need of it, as bytes.

A record is a header in JSON and bytes: the rows of the tables as text, and the influences of the
values whose means are in run.json as numbers. The header has the values that run.json and the
labels of roles are made of. Rows of roles follow when the tables are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from attention_plasticity.estimate.quantity import Quantity
from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.measure.result import (
    Columns,
    Failure,
    GroupResult,
    HeadResult,
    KeyHeadRow,
)
from attention_plasticity.metrics import (
    GROUP_COLUMNS,
    HEAD_METRICS,
    IDS,
    KEY_HEADS,
    TABLES,
    TableKind,
)
from attention_plasticity.run.csv_text import csv_columns, csv_rows
from attention_plasticity.run.warnings import sizes_of
from qk_toolkit.arrays import Array

_MOST_BYTES = 1 << 30  # of a record that is not compressed
_SIZE = 4  # bytes of a length
_AVERAGED = frozenset(HEAD_METRICS.averaged)
_KEPT = (*HEAD_METRICS.averaged, "layer_type", "n_text_groups")
"""Values of a query head that run.json needs."""
_CODEC = pa.Codec("zstd", compression_level=1)


@dataclass(frozen=True)
class Record:
    """A finished key head with its query heads. Values are as `measure_group` found them."""

    heads: list[dict[str, Any]]  # values, scores of roles, reasons, sizes of samples
    key_head: dict[str, Any] | None  # its values and its reasons
    failures: list[Failure]
    texts: Mapping[TableKind, bytes]  # rows of the tables
    quantities: list[tuple[int | None, str]]  # query head, or None for the key head; name
    numbers: Array  # (m, 2 + g) value, groups of texts, influences of these

    @property
    def q_heads(self) -> list[int]:
        """The query heads that were analysed."""
        return [head["q_head"] for head in self.heads]


def packed(result: GroupResult) -> bytes:
    """The bytes of the record of a key head. The same result gives the same bytes."""
    texts = {kind: _text(kind, result) for kind in TABLES if kind != "roles"}
    texts = {kind: text for kind, text in texts.items() if text}
    named = list(_averaged(result))
    numbers = np.array([[*one[2:4], *one[4]] for one in named], np.float64)
    row = result.key_head
    header = {
        "heads": [_head(head) for head in result.heads],
        "key_head": None if row is None else _key_head(row),
        "failures": [vars(failure) for failure in result.failures],
        "quantities": [one[:2] for one in named],
        "texts": {kind: len(text) for kind, text in texts.items()},
    }
    begin = json.dumps(header).encode()
    size = len(begin).to_bytes(_SIZE, "little")
    content = b"".join([size, begin, *texts.values(), numbers.tobytes()])
    whole: bytes = _CODEC.compress(content, asbytes=True)
    return len(content).to_bytes(_SIZE, "little") + whole


def unpacked(content: bytes) -> Record:
    """The record of its bytes. Raises a `ValueError` if they are not those of a record."""
    size = int.from_bytes(content[:_SIZE], "little")
    if size > _MOST_BYTES:
        raise ValueError("it claims to be too large")
    try:
        whole: bytes = _CODEC.decompress(content[_SIZE:], size, asbytes=True)
    except OSError as error:
        raise ValueError(str(error)) from error
    place = _SIZE + int.from_bytes(whole[:_SIZE], "little")
    header = json.loads(whole[_SIZE:place])
    texts = {}
    for kind, length in header["texts"].items():
        texts[kind] = whole[place : place + length]
        place += length
    return Record(
        header["heads"],
        header["key_head"],
        [Failure(**one) for one in header["failures"]],
        texts,
        [(q_head, name) for q_head, name in header["quantities"]],
        np.frombuffer(whole, np.float64, offset=place).reshape(-1, 2 + GROUPS),
    )


def _head(result: HeadResult) -> dict[str, Any]:
    """What the header has of a query head."""
    roles = result.tables.get("roles")
    return {
        "q_head": result.q_head,
        "values": {name: result.metrics[name] for name in _KEPT if name in result.metrics},
        "roles": None if roles is None else {name: column[0] for name, column in roles.items()},
        "missing": result.missing,
        "sizes": sizes_of(result),
        "unknown_tokens": result.unknown_tokens,
    }


def _key_head(row: KeyHeadRow) -> dict[str, Any]:
    """What the header has of the key head."""
    values = {name: row.values[name] for name in KEY_HEADS.averaged}
    return {"values": values, "missing": row.missing}


def _text(kind: TableKind, result: GroupResult) -> bytes:
    """The rows of a table."""
    names = TABLES[kind].names
    if kind == "head_metrics":
        return csv_rows(kind, (list(head.metrics.values()) for head in result.heads))
    if kind == "key_heads":
        row = result.key_head
        return csv_rows(kind, [] if row is None else [[row.values[name] for name in names]])
    return b"".join(
        csv_columns(kind, _with_ids(head, head.tables[kind]))
        for head in result.heads
        if len(next(iter(head.tables.get(kind, {"": ()}).values())))
    )


def _with_ids(head: HeadResult, columns: Columns) -> Columns:
    size = len(next(iter(columns.values())))
    return {name: [head.metrics[name]] * size for name in IDS} | columns


def _averaged(result: GroupResult) -> Iterator[tuple[int | None, str, float, float, Any]]:
    """Head, name, value, groups and influences of the values whose means are in run.json."""
    for head in result.heads:
        table = head.tables["influences"]
        for place, name in enumerate(table["quantity"]):
            if name in _AVERAGED and np.isnan(table["bin"][place]):
                influences = [table[column][place] for column in GROUP_COLUMNS]
                value, groups = table["value"][place], table["n_groups"][place]
                yield head.q_head, name, value, groups, influences
    known: Mapping[str, Quantity] = {} if result.key_head is None else result.key_head.quantities
    for name, one in known.items():
        yield None, name, one.value, one.groups, one.influences.tolist()
