"""The dump of repeated tokens of the same model, from which the standard scores of heads come."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from qk_dump.layout import Dump
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError

_HOW = "Make it with: attention-plasticity capture --dataset.path synthetic:repeated"


def with_repeated(dump: Dump, name: str | None) -> Dump:
    """The dump with its dump of repeated tokens, if one is given. Raises a `ConfigError`.

    A dump that is itself of repeated tokens is used if none is given.
    """
    if name is None:
        return replace(dump, repeated=dump) if is_repeated(dump) else dump
    repeated = open_dump(name)
    if not is_repeated(repeated):
        raise ConfigError(f"repeated: {name}: is not a dump of synthetic:repeated. {_HOW}")
    for field in ("num_layers", "num_q_heads", "model"):
        ours, theirs = _value(dump, field), _value(repeated, field)
        if ours is not None and theirs is not None and ours != theirs:
            raise ConfigError(
                f"repeated: {name}: is of another model: {field} is {theirs} there and {ours} in "
                f"{dump.path}"
            )
    return replace(dump, repeated=repeated)


def is_repeated(dump: Dump) -> bool:
    """Whether a dump is of random tokens that come twice."""
    made = dump.manifest.synthetic if dump.manifest else None
    return bool(made) and (made or {}).get("type") == "repeated"


def repeated_digest(dump: Dump) -> str | None:
    """A hash of `dump.json` of the dump of repeated tokens; None without one."""
    if dump.repeated is None or dump.repeated.manifest is None:
        return None
    return hashlib.sha256(dump.repeated.manifest.model_dump_json().encode()).hexdigest()[:16]


def _value(dump: Dump, field: str) -> Any:
    """A value of `dump.json`; a model without the folder that it is in."""
    value = getattr(dump.manifest, field, None)
    return PurePosixPath(value).name if field == "model" and value else value
