"""Columns → bytes: typed arrays one after another, compressed, and a header to find them by."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

Column = npt.NDArray[Any]
Table = Mapping[str, Column]
Header = dict[str, dict[str, Any]]

_UNSIGNED = (("u1", 2**8), ("u2", 2**16), ("u4", 2**32))


def pack(tables: Mapping[str, Table]) -> tuple[Header, bytes]:
    """All columns in one block, each at a multiple of 8 bytes, and where each one lies.

    Little-endian, as every browser's typed arrays are. Integers take the smallest type that
    holds them; floats keep theirs.
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


def encoded(content: bytes) -> str:
    """Compressed and written as text; the same content gives the same text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")


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
