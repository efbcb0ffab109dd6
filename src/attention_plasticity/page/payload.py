"""Packs tables as typed columns into one block of bytes, with a header of their offsets.

Every text is stored once, inside the compressed block, so that no text of a run is part of the
HTML. A column of texts has their numbers.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
Table = Mapping[str, Column]
Header = dict[str, dict[str, Any]]

_UNSIGNED = (("u1", 2**8), ("u2", 2**16), ("u4", 2**32))


def pack(tables: Mapping[str, Table]) -> tuple[Header, bytes]:
    """Pack all columns into one block. Each offset is a multiple of 8 bytes.

    Values are little-endian, as in browsers. Integers get the smallest possible type; floats keep
    their type. The table `texts` has all texts, in the order of their numbers, as the bytes of a
    JSON list.
    """
    header: Header = {}
    parts: list[bytes] = []
    texts: dict[str, int] = {}
    offset = 0

    def add(name: str, table: Table) -> None:
        nonlocal offset
        columns = []
        for column, values in table.items():
            stored, kind = _stored(values, texts)
            content = stored.tobytes()
            content += b"\0" * (-len(content) % 8)
            columns.append([column, "text" if values.dtype.kind == "O" else kind, offset])
            parts.append(content)
            offset += len(content)
        header[name] = {"rows": len(next(iter(table.values()))), "columns": columns}

    for name, table in tables.items():
        add(name, table)
    add("texts", {"utf8": np.frombuffer(json.dumps(list(texts)).encode("ascii"), np.uint8)})
    return header, b"".join(parts)


def compressed(content: bytes) -> bytes:
    """Compress with gzip. The same content gives the same bytes."""
    return gzip.compress(content, 9, mtime=0)


def _stored(values: Column, texts: dict[str, int]) -> tuple[Column, str]:
    if values.dtype.kind == "O":
        numbers = [texts.setdefault(str(text), len(texts)) for text in values]
        return np.array(numbers, "<u4"), "u4"
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
