"""Reading of run.json, and hashes of it and of the files that it names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from qk_toolkit.errors import ConfigError
from qk_toolkit.files import open_regular, read_json

RUN_FILE = "run.json"
DIGEST = "digest"
"""The entry of run.json with the hash of all others but times. Earlier runs do not have it."""
_NOT_HASHED = (DIGEST, "finished", "seconds")
NUMERIC_LIBRARIES = ("numpy", "scipy", "pyarrow")
"""Libraries whose versions can change the values of a run."""


def read_run_info(file: Path) -> dict[str, Any]:
    """The content of run.json. Raises a `ConfigError`, or `FileNotFoundError`."""
    try:
        info = read_json(file)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: cannot be read: {reason}. Run the analysis again") from error
    if not isinstance(info, dict):
        raise ConfigError(f"{file}: expected a mapping, got {info!r:.60}. Run the analysis again")
    if info.get(DIGEST, digest := digest_of(info)) != digest:
        raise ConfigError(f"{file}: was changed after the run. Run the analysis again")
    return info


def digest_of(info: dict[str, Any]) -> str:
    """The hash of the entries of run.json. White space in the file does not change it."""
    entries = {name: value for name, value in info.items() if name not in _NOT_HASHED}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def sha256_of(path: Path) -> str | None:
    """Hash of the content of a file; None if the file cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: invalid file name
        return None
