"""Errors of devices that have no memory left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from qk_toolkit.errors import ToolkitError


@contextmanager
def out_of_memory_advice(advice: str) -> Iterator[None]:
    """Turn an out-of-memory error into one line that says which settings need less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ToolkitError(f"out of memory ({reason}). {advice}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory of a device or of the CPU is exhausted."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return type(error) is RuntimeError and "alloc" in str(error)  # the CPU's allocator
