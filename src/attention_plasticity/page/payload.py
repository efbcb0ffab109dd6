"""Packs columns as typed arrays into one block of bytes, with a header of their offsets."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

Column = npt.NDArray[Any]
Table = Mapping[str, Column]
Header = dict[str, dict[str, Any]]

_UNSIGNED = (("u1", 2**8), ("u2", 2**16), ("u4", 2**32))


def pack(tables: Mapping[str, Table]) -> tuple[Header, bytes]:
    """Pack all columns into one block. Each offset is a multiple of 8 bytes.

    Values are little-endian, as in browsers. Integers get the smallest possible type; floats keep
    their type.
    """
    header: Header = {}
    parts: list[bytes] = []
    offset = 0
    for name, table in tables.items():
        columns = []
        for column, values in table.items():
            stored, kind = _stored(values)
            content = stored.tobytes()
            content += b"\0" * (-len(content) % 8)
            columns.append([column, kind, offset])
            parts.append(content)
            offset += len(content)
        header[name] = {"rows": len(next(iter(table.values()))), "columns": columns}
    return header, b"".join(parts)


def compressed(content: bytes) -> bytes:
    """Compress with gzip. The same content gives the same bytes."""
    return gzip.compress(content, 9, mtime=0)


def _stored(values: Column) -> tuple[Column, str]:
    if values.dtype.kind == "f":
        kind = "f4" if values.dtype.itemsize <= 4 else "f8"
    else:
        kind = _integer_kind(values)
    return values.astype(f"<{kind}"), kind


def _integer_kind(values: Column) -> str:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if low >= 0:
        return next((kind for kind, end in _UNSIGNED if high < end), "f8")
    return "i4" if low >= -(2**31) and high < 2**31 else "f8"
