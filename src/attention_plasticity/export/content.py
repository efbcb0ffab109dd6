"""What a format puts into its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import sync, write_through

if TYPE_CHECKING:
    from rich.console import Console

Writer = Callable[[Path], None]

CONFIG = "config.json"
TENSORS = "model.safetensors"


@dataclass(frozen=True)
class Content:
    """Files by name, and what `PROVENANCE.json` says about them."""

    files: Mapping[str, Writer]
    heads: list[dict[str, Any]]  # of captured query heads with rows and errors, or of key heads
    rules: Mapping[str, Any] = field(default_factory=dict)  # choices that decide the numbers
    evidence: str | None = None  # what was measured with such a file
    show: Callable[[Path, Console], None] | None = None  # prints about the folder


def json_file(content: Any) -> Writer:
    """Writes JSON."""
    return lambda path: write_through(path, json.dumps(content, indent=2) + "\n")


def text_file(text: str) -> Writer:
    """Writes text."""
    return lambda path: write_through(path, text)


def tensors_file(tensors: Mapping[str, Array]) -> Writer:
    """Writes float32 tensors as safetensors."""
    require_safetensors()

    def write(path: Path) -> None:
        from safetensors.numpy import save_file

        arrays = {name: np.ascontiguousarray(of, np.float32) for name, of in tensors.items()}
        path.touch()
        mode = path.stat().st_mode
        save_file(arrays, path, metadata={"format": "pt"})
        path.chmod(mode)  # safetensors lets only the owner read
        with path.open("rb+") as file:
            sync(file)

    return write


def array_file(array: Array) -> Writer:
    """Writes an array as .npy, without pickle."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
            sync(file)

    return write


def csv_file(table: pd.DataFrame) -> Writer:
    """Writes a table."""
    return text_file(table.to_csv(index=False, na_rep="nan", lineterminator="\n"))


def entries_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table for `PROVENANCE.json`; null: not known."""
    return [
        {str(name): None if value != value else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]


def require_safetensors() -> None:
    """Raise a `ConfigError` that names the package to install if safetensors is missing."""
    try:
        import safetensors.numpy  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "safetensors":
            raise
        raise ConfigError(
            "safetensors: is not installed; run pip install 'attention-plasticity[export]'"
        ) from error
