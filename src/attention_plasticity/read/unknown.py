"""A quantity that a dump does not determine, in the place of its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unknown:
    """A quantity that is not known. The reason goes into run.json beside the missing values."""

    reason: str
