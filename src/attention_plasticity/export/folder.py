"""The folder of an export: written in one step, and replaced only by another export."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attention_plasticity.export.content import Writer
from attention_plasticity.export.provenance import MADE_BY, provenance_text
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import (
    cannot_write,
    open_regular,
    read_json,
    staged_folder,
    try_writing,
    write_through,
)

PROVENANCE = "PROVENANCE.json"


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
    foreign = _foreign(target)
    if foreign:
        raise ConfigError(
            f"{target}: has files that export did not write, or that were changed since: "
            f"{', '.join(foreign[:5])}. Choose another folder"
        )
    if any(target.iterdir()) and not overwrite:
        raise ConfigError(f"{target}: exists; give --overwrite to replace it")


def write_folder(
    target: Path, files: Mapping[str, Writer], facts: Mapping[str, Any], *, overwrite: bool
) -> None:
    """Write the files, and `facts` as `PROVENANCE.json`. After a failure nothing has changed."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with staged_folder(target) as draft:
            for name, write in files.items():
                write(draft / name)
            hashes = {name: _sha256(draft / name) for name in files}
            write_through(draft / PROVENANCE, provenance_text({**facts, "sha256": hashes}))
            require_target(target, overwrite=overwrite)
            if target.exists():
                target.rename(old)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _foreign(folder: Path) -> list[str]:
    """Names in a folder that are not files of an earlier export with their content."""
    names = sorted(path.name for path in folder.iterdir())
    try:
        facts = read_json(folder / PROVENANCE)
        if facts["made_by"] != MADE_BY:
            return names
        known = dict(facts["sha256"])
    except (OSError, ValueError, TypeError, KeyError):
        return names
    return [name for name in names if name != PROVENANCE and not _same(folder / name, known)]


def _same(path: Path, hashes: Mapping[str, object]) -> bool:
    try:
        return path.name in hashes and hashes[path.name] == _sha256(path)
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
