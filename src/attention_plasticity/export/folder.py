"""The folder of an export: its files, written in one step, and replaced only by another export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_plasticity.export.provenance import versions
from attention_plasticity.tables.run_info import sha256_of
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError, not_installed, without_tokens
from qk_toolkit.files import (
    cannot_write,
    read_json,
    staged_folder,
    sync,
    try_writing,
    write_through,
)

if TYPE_CHECKING:
    from rich.console import Console

CONFIG = "config.json"
PROVENANCE = "PROVENANCE.json"
MADE_BY = "attention-plasticity export"
Writer = Callable[[Path], object]


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
    return text_file(json.dumps(content, indent=2) + "\n")


def text_file(text: str) -> Writer:
    """Writes text."""
    return lambda path: write_through(path, text)


def tensors_file(tensors: Mapping[str, Array]) -> Writer:
    """Writes float32 tensors as safetensors."""

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


def require_safetensors() -> None:
    """Raise a `ConfigError` that names the package to install if safetensors is missing."""
    try:
        import safetensors.numpy  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "safetensors":
            raise
        raise not_installed("safetensors", "export") from error


def require_target(target: Path, *, overwrite: bool) -> None:
    """Raise a `ConfigError` if the folder cannot be written, or has files of others."""
    if not target.exists():
        try:
            try_writing(target)
        except OSError as error:
            raise ConfigError(
                f"{target}: cannot be written: {error.strerror or error}. Choose another folder"
            ) from error
        return
    if not target.is_dir():
        raise ConfigError(f"{target}: is a file; the output is a folder. Choose another name")
    if others := _files_of_others(target):
        raise ConfigError(
            f"{target}: has files that export did not write: {', '.join(others[:5])}. Choose "
            "another folder"
        )
    if any(target.iterdir()) and not overwrite:
        raise ConfigError(f"{target}: exists; give --overwrite to replace it")


def write_folder(
    target: Path, content: Content, origin: Mapping[str, Any], command: str, *, overwrite: bool
) -> None:
    """Write the files and `PROVENANCE.json`. If a file cannot be written, nothing has changed.

    `origin` is the format, and where the numbers come from.
    """
    facts = {
        "made_by": MADE_BY,
        **origin,
        "rules": dict(content.rules),
        **({} if content.evidence is None else {"evidence": content.evidence}),
        "heads": [],
        "versions": versions(),
        "command": without_tokens(command),
    }
    try:
        with staged_folder(target) as draft:
            for name, write in content.files.items():
                write(draft / name)
            hashes = {name: sha256_of(draft / name) for name in content.files}
            text = _with_heads({**facts, "sha256": hashes}, content.heads)
            write_through(draft / PROVENANCE, text)
            require_target(target, overwrite=overwrite)
            old = draft.with_name(f"{draft.name}-old")
            if target.exists():
                target.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise cannot_write(target, error) from error


def _with_heads(facts: Mapping[str, Any], heads: list[dict[str, Any]]) -> str:
    """Indented JSON with one line per head."""
    whole = json.dumps(facts, indent=2, ensure_ascii=False)
    lines = ",\n".join(f"    {json.dumps(head)}" for head in heads)
    return whole.replace('\n  "heads": []', f'\n  "heads": [\n{lines}\n  ]', 1) + "\n"


def _files_of_others(folder: Path) -> list[str]:
    """Names in a folder that are not those of an earlier export."""
    names = sorted(path.name for path in folder.iterdir())
    try:
        facts = read_json(folder / PROVENANCE)
        own = {PROVENANCE, *facts["sha256"]} if facts["made_by"] == MADE_BY else set()
    except (OSError, ValueError, TypeError, KeyError):
        own = set()
    return [name for name in names if name not in own]
