"""JSON files that start with a hash of their content, so that damage is noticed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from qk_toolkit.errors import ConfigError
from qk_toolkit.files import MOST_JSON_BYTES, read_bounded

REMEDY = "Remove it, or choose another output_dir."


def sealed(content: dict[str, Any]) -> str:
    """JSON in two lines: the hash of the content, then the content."""
    body = json.dumps(content)
    return f"{_seal(body)}\n{body[1:]}\n"


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The content of a sealed file; None if the file is missing or its hash is wrong."""
    try:
        text = read_bounded(path, MOST_JSON_BYTES).decode("utf-8")
        seal, _, rest = text.partition("\n")
    except (FileNotFoundError, ValueError):
        return None
    except PermissionError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}. {REMEDY}") from error
    body = "{" + rest.removesuffix("\n")
    if not rest.endswith("\n") or seal != _seal(body):
        return None
    content: dict[str, Any] = json.loads(body)
    return content


def is_intact(path: Path) -> bool:
    """Whether a sealed file exists and has the hash that it starts with."""
    return read_sealed(path) is not None


def _seal(body: str) -> str:
    return f'{{"sha256": "{hashlib.sha256(body.encode()).hexdigest()}",'
