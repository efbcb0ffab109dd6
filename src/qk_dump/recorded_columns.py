"""The names of a head's columns in the metadata of its Parquet file, with their hash.

Page checksums cover the rows, but not the names of the columns in the footer. A damaged name would
remove a column that is optional. So the names are written a second time and compared when a file is
opened. Files of other tools and of earlier captures do not have them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from qk_dump.remote import DumpPath
from qk_toolkit.errors import DumpError
from qk_toolkit.files import parsed_json

RECORD = "qk_dump"  # key of the entry in the metadata of a file
_ACTION = (
    "Capture or download it again. If you changed the columns yourself, write the file without "
    f"its metadata entry '{RECORD}'."
)


def with_recorded_names(schema: pa.Schema) -> pa.Schema:
    """The schema with the names of its columns in its metadata."""
    record = {"columns": schema.names, "sha256": _digest(schema.names)}
    return schema.with_metadata({RECORD: json.dumps(record)})


def check_recorded_names(
    metadata: Mapping[bytes, bytes] | None, names: Sequence[str], path: DumpPath
) -> None:
    """Raise a `DumpError` unless a file has the columns in its metadata, if they are there.

    Further columns are allowed: they can be added to a file later.
    """
    stored = (metadata or {}).get(RECORD.encode())
    if stored is None:
        return
    try:
        record = parsed_json(stored)
        recorded = [str(name) for name in record["columns"]]
        damaged = record["sha256"] != _digest(recorded)
    except (ValueError, KeyError, TypeError):
        damaged = True
    if damaged:
        raise DumpError(f"{path}: the names of its columns in its metadata are damaged. {_ACTION}")
    missing = [name for name in recorded if name not in names]
    if missing:
        raise DumpError(
            f"{path}: has no column '{missing[0]}', which its metadata lists (found: "
            f"{', '.join(names)}). {_ACTION}"
        )


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()
