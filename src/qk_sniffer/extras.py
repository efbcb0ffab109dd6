"""The libraries of the extra `capture`; the analysis does not need them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from qk_toolkit.errors import not_installed

_LIBRARIES = ("accelerate", "datasets", "gguf", "torch", "transformers")


def require_vllm() -> None:
    """Refuse to start without vLLM; a folder of that name is not the library."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise not_installed("vllm", "vllm")


@contextmanager
def capture_extra() -> Iterator[None]:
    """Turn a missing library into an error that names the package to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _LIBRARIES:
            raise
        raise not_installed(error.name, "capture") from error
