"""The libraries of the extra `capture`; the analysis does not need them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qk_toolkit.errors import ConfigError

_LIBRARIES = ("accelerate", "datasets", "gguf", "torch", "transformers")


@contextmanager
def capture_extra() -> Iterator[None]:
    """Turn a missing library into an error that names the package to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _LIBRARIES:
            raise
        raise ConfigError(
            f"{error.name}: is not installed; run pip install 'attention-plasticity[capture]'"
        ) from error
