"""Telling whether the files of a local model are still the same.

Every file is hashed whole. Hashes are remembered beside the files, with size and times, so that
large weights are read once.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from qk_toolkit.errors import ConfigError, OutputError
from qk_toolkit.files import read_json, write_text

HASHES = ".attention-plasticity-hashes.json"
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")  # of the first kind there is
_OTHERS = {".json", ".model", ".py", ".txt"}
_SETTLED = 3.0  # seconds after which a change would show in a file's times
_LARGE = 2 << 30

Note = Callable[[str], None]


def files_hash(folder: Path, file: str | None = None, note: Note = lambda text: None) -> str | None:
    """One hash over the model files of a folder, or of one of them; None without a folder."""
    if not folder.is_dir():
        return None
    paths = [folder / file] if file is not None else _model_files(folder)
    known = _remembered(folder)
    unknown = [path for path in paths if known.get(path.name, ())[:-1] != _stamp(path)]
    size = sum(path.stat().st_size for path in unknown)
    if size > _LARGE:
        note(f"{folder}: hashing {size / 1e9:,.1f} GB of model files, once")
    for path in unknown:
        known[path.name] = [*_stamp(path), _sha256(path)]
    if unknown:
        _remember(folder, known)
    lines = [f"{path.name} {known[path.name][-1]}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def require_same(folder: Path, file: str | None, before: str | None) -> None:
    """Refuse files that changed since their hash was taken."""
    if files_hash(folder, file) != before:
        raise ConfigError(
            f"model.name: {folder}: its files changed while they were loaded; run the same command "
            "again"
        )


def _model_files(folder: Path) -> list[Path]:
    """Weights of the kind that is loaded, configs, tokenizer files and code, by name."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    files = [path for path in files if not path.name.startswith(".")]
    present = {path.suffix for path in files}
    weights = next((suffix for suffix in _WEIGHTS if suffix in present), None)
    return [path for path in files if path.suffix in _OTHERS or path.suffix == weights]


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered(folder: Path) -> dict[str, list[Any]]:
    try:
        content = read_json(folder / HASHES)
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {name: entry for name, entry in content.items() if _is_entry(entry)}


def _is_entry(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 4 and isinstance(entry[-1], str)


def _remember(folder: Path, known: dict[str, list[Any]]) -> None:
    """Keep the hashes of files that have been at rest; a folder may be read-only."""
    latest = (time.time() - _SETTLED) * 1e9
    settled = {name: entry for name, entry in known.items() if max(entry[1:3]) < latest}
    with suppress(OutputError):
        write_text(folder / HASHES, json.dumps(settled, indent=1) + "\n")
