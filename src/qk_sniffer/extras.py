"""The libraries of the extra `capture`, which the analysis alone does without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qk_toolkit.errors import ConfigError

_LIBRARIES = ("accelerate", "datasets", "gguf", "torch", "transformers")


@contextmanager
def capture_extra() -> Iterator[None]:
    """Say how to install what is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _LIBRARIES:
            raise
        raise ConfigError(
            f"{error.name}: is not installed; pip install 'attention-plasticity[capture]'"
        ) from error
