"""Rows of tables as the text of a CSV file.

Floats have the shortest text that restores them exactly, or `nan`. Arrow writes most of them; where
its text differs from that of Python, Python's is taken.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import WriteOptions, write_csv

from attention_plasticity.metrics import TABLES, TableKind
from qk_toolkit.arrays import Array

_PLAIN = WriteOptions(include_header=False, quoting_style="none")
_SMALL, _LARGE = 1e-4, 1e9  # outside, Arrow and Python choose another notation


def csv_rows(kind: TableKind, rows: Iterable[Sequence[Any]]) -> bytes:
    """Rows of plain values.

    Texts of the table of words are quoted: without quotes, a carriage return in a token would end
    the row.
    """
    file = io.StringIO()
    if kind == "words":
        csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(rows)
    else:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue().encode()


def csv_columns(kind: TableKind, columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Rows from columns of numbers and of words without a comma."""
    values = [columns[name] for name in TABLES[kind].names]
    if kind == "words":
        return csv_rows(kind, zip(*values, strict=True))
    arrays = [_numbers(one) for one in values]
    kinds = [None if one is None else one.dtype.kind for one in arrays]
    floats = [place for place, kind in enumerate(kinds) if kind == "f"]
    size = len(values[0])
    texts: list[Any] = [
        None if place in floats else _texts(one, array)
        for place, (one, array) in enumerate(zip(values, arrays, strict=True))
    ]
    flat = _float_texts(np.concatenate([np.zeros(0), *(arrays[place] for place in floats)]))
    for number, place in enumerate(floats):
        texts[place] = flat.slice(number * size, size)
    sink = pa.BufferOutputStream()
    write_csv(pa.table(texts, names=list(TABLES[kind].names)), sink, _PLAIN)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _numbers(values: Sequence[Any]) -> Any:
    """The values as an array; None for texts, and where integers and floats are mixed."""
    if isinstance(values, np.ndarray):
        return values
    return np.asarray(values) if set(map(type, values)) in ({int}, {float}) else None


def _texts(values: Sequence[Any], numbers: Any) -> Any:
    return pa.array(list(map(str, values)) if numbers is None else numbers).cast(pa.string())


def _float_texts(values: Array) -> Any:
    texts = pa.array(values).cast(pa.string())
    size = np.abs(values)
    other = (values == np.floor(values)) | (size < _SMALL) | (size >= _LARGE)
    other &= np.isfinite(values)
    if not other.any():
        return texts
    return pc.replace_with_mask(
        texts, pa.array(other), pa.array(list(map(repr, values[other].tolist())), pa.string())
    )
