"""Hours of a capture, from measured speeds. docs/scale.md explains them.

The speeds are those of one machine. They tell minutes from days, no more.
"""

from __future__ import annotations

GPU_SPEED = 530e12
"""Floating-point operations of a forward per second, on one H200."""
CORE_SPEED = 0.075e12
"""The same on one CPU core."""


def capture_seconds(operations: float, cores: int) -> tuple[float, float]:
    """Seconds of the forwards of a capture, on one H200 and on the cores of this machine."""
    return operations / GPU_SPEED, operations / (CORE_SPEED * cores)
