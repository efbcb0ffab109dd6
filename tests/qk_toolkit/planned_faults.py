"""Faults that a test plans for later requests to a server of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Plan:
    """A fault for some of the requests of one kind; "*" is any kind."""

    kind: str
    fault: Any
    path: str
    times: int | None
    skip: int
    hits: int = 0

    def takes(self, kind, path):
        """Whether the fault applies to this request; counts it."""
        if self.kind not in ("*", kind) or self.path not in path or self.times == self.hits:
            return False
        self.skip -= 1
        self.hits += self.skip < 0
        return self.skip < 0
