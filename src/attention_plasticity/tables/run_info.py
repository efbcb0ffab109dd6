"""Reading of run.json, and hashes of the files that it names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attention_plasticity.tables.run_schema import RunInfo
from qk_dump.manifest import json_problem
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import open_regular, read_json

RUN_FILE = "run.json"
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
    try:
        RunInfo.model_validate(info, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{file}: {json_problem(error)}. Run the analysis again") from error
    return info


def sha256_of(path: Path) -> str | None:
    """Hash of the content of a file; None if the file cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: invalid file name
        return None
