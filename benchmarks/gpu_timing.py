"""Seconds and GPU memory of a call."""

from __future__ import annotations

import time
from typing import Any


def timed(work: Any, peaks: dict[str, float], name: str) -> float:
    """Seconds of a call; `peaks` gets the largest GPU memory under this name."""
    import torch

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    work()
    if gpu:
        torch.cuda.synchronize()
        peaks[name] = max(peaks.get(name, 0), torch.cuda.max_memory_allocated())
    return time.perf_counter() - began
