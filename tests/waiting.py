"""Waiting for what another process, thread or server does."""

import time

PATIENCE = 300.0
"""Seconds after which something never comes. Also a busy machine is in time."""


def wait_for(what, condition):
    """Wait until a condition is true. The error says `what` did not come."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.01)
