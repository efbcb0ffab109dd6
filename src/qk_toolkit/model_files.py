"""Detect changes in the files of a local model.

Every file is hashed completely. The hashes are stored in the cache folder, with the size and the
times of each file, so that large weights are hashed once. Nothing is written into the model's
folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from qk_toolkit.cache import cache_folder
from qk_toolkit.errors import OutputError
from qk_toolkit.files import read_json, resolved, write_text

_HASHES = "model-hashes"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth")  # the first one found is used
_OTHER_SUFFIXES = {".json", ".model", ".py", ".txt"}
_LARGE_BYTES = 2 << 30

Note = Callable[[str], None]


def files_hash(folder: Path, file: str | None = None, note: Note = lambda text: None) -> str | None:
    """One hash of all model files in a folder, or of one file; None if there is no folder."""
    if not folder.is_dir():
        return None
    paths = [folder / file] if file is not None else _model_files(folder)
    known = _read_hashes(folder)
    unknown = [path for path in paths if known.get(path.name, ())[:-1] != _stamp(path)]
    size = sum(path.stat().st_size for path in unknown)
    if size > _LARGE_BYTES:
        note(f"{folder}: hashing {size / 1e9:,.1f} GB of model files; later runs reuse the hashes")
    for path in unknown:
        known[path.name] = [*_stamp(path), _sha256(path)]
    if unknown:
        _write_hashes(folder, known)
    lines = [f"{path.name} {known[path.name][-1]}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def _model_files(folder: Path) -> list[Path]:
    """Weight files of one format, configs, tokenizer files and code, sorted by name."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    files = [path for path in files if not path.name.startswith(".")]
    present = {path.suffix for path in files}
    weights = next((suffix for suffix in _WEIGHT_SUFFIXES if suffix in present), None)
    return [path for path in files if path.suffix in _OTHER_SUFFIXES or path.suffix == weights]


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes_file(folder: Path) -> Path:
    """Where the hashes of the files of a model folder are stored."""
    name = hashlib.sha256(os.fsencode(resolved(folder))).hexdigest()[:16]
    return cache_folder() / _HASHES / f"{name}.json"


def _read_hashes(folder: Path) -> dict[str, list[Any]]:
    try:
        return dict(read_json(hashes_file(folder)))
    except (OSError, ValueError):
        return {}


def _write_hashes(folder: Path, known: dict[str, list[Any]]) -> None:
    """Store the hashes, if the cache can be written."""
    with suppress(OutputError):
        write_text(hashes_file(folder), json.dumps(known, indent=1) + "\n")
