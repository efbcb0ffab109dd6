"""Waiting for what another process, thread or server does."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds after which something never comes. Also a busy machine is in time."""


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """Wait until a condition is true. The error says `what` did not come."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.01)
