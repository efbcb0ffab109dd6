"""Files of torch tensors that `torch.load` reads with `weights_only`, for `export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qk_toolkit.errors import not_installed
from qk_toolkit.files import sync


def tensor_file_writer() -> Callable[[Path, Mapping[str, Any]], None]:
    """A function that writes mappings of arrays, lists and text as a .pt file.

    Raises a `ConfigError` if torch is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise not_installed("torch", "capture") from error

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value.copy())
        if isinstance(value, Mapping):
            return {name: plain(member) for name, member in value.items()}
        return value

    def write(path: Path, content: Mapping[str, Any]) -> None:
        with path.open("wb") as file:
            torch.save(plain(content), file)
            sync(file)

    return write
