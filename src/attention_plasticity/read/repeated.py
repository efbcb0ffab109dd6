"""The dump of repeated tokens of the same model, from which the standard scores of heads come."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError

_HOW = "Make it with: attention-plasticity capture MODEL synthetic:repeated DUMP"


def with_repeated(dump: Dump, name: str | None) -> Dump:
    """The dump with its dump of repeated tokens, if one is given. Raises a `ConfigError`.

    A dump that is itself of repeated tokens is used if none is given.
    """
    if name is None:
        return replace(dump, repeated=dump) if is_repeated(dump) else dump
    repeated = open_dump(name)
    if not is_repeated(repeated):
        raise ConfigError(f"repeated: {name}: is not a dump of synthetic:repeated. {_HOW}")
    ours, theirs = _facts(dump), _facts(repeated)
    for field in ours:
        if field == "model" and None not in (ours["files"], theirs["files"]):
            continue  # the same files, which may be in another folder
        if None not in (ours[field], theirs[field]) and ours[field] != theirs[field]:
            raise ConfigError(
                f"repeated: {name}: is of another model: {field} is {theirs[field]} there and "
                f"{ours[field]} in {dump.path}"
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


def _facts(dump: Dump) -> dict[str, Any]:
    """What both dumps must have in common; None where it is not known.

    The name of a model is without the folder that it is in; `files` is a hash of its files.
    """
    manifest = dump.manifest or DumpManifest()
    model = (manifest.capture or {}).get("model")
    recorded = model if isinstance(model, dict) else {}
    return {
        "num_layers": manifest.num_layers,
        "num_q_heads": manifest.num_q_heads,
        "files": recorded.get("files"),
        "commit": recorded.get("commit"),
        "model": manifest.model and PurePosixPath(manifest.model).name,
    }
