"""Hours of captures and analyses, from measured speeds. docs/scale-cost.md explains them.

The speeds are those of one machine. They tell minutes from days, no more.
"""

from __future__ import annotations

from qk_toolkit.formatting import duration

GPU_SPEED = 530e12
"""Floating-point operations of a forward per second, on one H200."""
CORE_SPEED = 0.075e12
"""The same on one CPU core."""
HEAD_SECONDS = 0.6
ROW_SECONDS = 8e-6
"""Core seconds of the analysis: for every query head, and for every row of queries and keys.

Heads of SmolLM2-135M with all tables took 0.45 to 0.85 s, with 2,700 to 8,200 rows per query head.
"""


def capture_seconds(operations: float, cores: int) -> tuple[float, float]:
    """Seconds of the forwards of a capture, on one H200 and on the cores of this machine."""
    return operations / GPU_SPEED, operations / (CORE_SPEED * cores)


def analysis_seconds(heads: int, rows: float, workers: int) -> float:
    """Seconds of an analysis with `rows` rows of all heads."""
    return (heads * HEAD_SECONDS + rows * ROW_SECONDS) / workers


def hours(seconds: float) -> str:
    """`< 1 min`, or as `duration` writes it."""
    return "< 1 min" if seconds < 60 else duration(seconds)
