"""What a Parquet file of a dump says about itself in its metadata.

The checksums of pages cover the values of a file, but not its footer. So the record also has the
names of the columns and the number of rows, and a hash of itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from qk_toolkit.files import parsed_json

RECORD = "qk_dump"  # key in the metadata of a file


@dataclass(frozen=True)
class FileRecord:
    """The capture of a file, its head, and what is in it."""

    capture: str | None  # id of the capture
    head: str  # folder of the head; "" for a file beside the heads
    rows: int
    columns: list[str]

    def as_metadata(self) -> dict[str, str]:
        """The entry of the metadata."""
        content = asdict(self)
        return {RECORD: json.dumps({**content, "sha256": _digest(content)})}

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> Self | None:
        """The record in the metadata of a file; None for a file of another tool.

        Raises a `ValueError` if it is damaged.
        """
        stored = (metadata or {}).get(RECORD.encode())
        if stored is None:
            return None
        try:
            content = parsed_json(stored)
            if content.pop("sha256") != _digest(content):
                raise ValueError
            return cls(**content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("its record in the metadata is damaged") from error


def capture_id(plan: Mapping[str, Any], texts: Iterable[Mapping[str, Any]]) -> str:
    """The id of a capture: a hash of its plan and its texts."""
    return _digest({"plan": plan, "texts": list(texts)})[:16]


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
