"""The rotary records of a dump, in the entries of `layers` in `dump.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qk_dump.limits import MOST_DIMENSIONS
from qk_dump.rotary import RotaryError, RotaryRecord


@dataclass(frozen=True)
class RotaryFile:
    """Rotary records from a file of their own, which come before those of `dump.json`."""

    path: str
    digest: str  # of the records, 16 hexadecimal digits
    layers: Sequence[Mapping[str, Any]]  # entries as in `dump.json`
    pre_rope: bool

    def as_record(self) -> dict[str, str]:
        """Path and digest, for run.json."""
        return {"path": self.path, "sha256": self.digest}


def check_rotary(entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise a `RotaryError` for an entry whose rotary record cannot be used."""
    for entry in entries:
        try:
            record, width = entry.get("rotary"), entry.get("head_dim")
            if record is not None:
                found = RotaryRecord.from_json(record)
                found.require_width(width if type(width) is int else MOST_DIMENSIONS)
            problem = entry.get("rotary_problem")
            if problem is not None and not isinstance(problem, str):
                raise RotaryError(f"rotary_problem: expected text, got {problem!r:.40}")
        except RotaryError as error:
            raise RotaryError(f"rotary of layer {entry.get('layer')!r:.20}: {error}") from error


def rotary_record(entries: Sequence[Mapping[str, Any]] | None, layer: int) -> RotaryRecord | None:
    """The rotary record of a layer in the `layers` of `dump.json`; None if there is none."""
    found = [entry.get("rotary") for entry in entries or () if entry.get("layer") == layer]
    return None if not found or found[0] is None else RotaryRecord.from_json(found[0])
