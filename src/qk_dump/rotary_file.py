"""Rotary records in a file of their own, and those of a dump."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from qk_dump.layout import Dump
from qk_dump.manifest import json_problem, json_text
from qk_dump.rotary import (
    RotaryError,
    RotaryFile,
    RotaryRecord,
    check_rotary,
    rotary_record,
)
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_json, user_path, write_text

_Format = Literal["rotary records"]
_REMEDY = "Make it again with attention-plasticity add-rotary."


class _Content(BaseModel):
    """The content of a file."""

    model_config = ConfigDict(protected_namespaces=())

    format: _Format
    model: str
    rope_parameters: dict[str, Any]
    pre_rope: bool
    layers: list[dict[str, Any]]


def write_rotary_file(file: RotaryFile) -> None:
    """Write the records of a model to their path."""
    facts = {"model": file.model, "rope_parameters": file.rope, "pre_rope": file.pre_rope}
    content = {"format": get_args(_Format)[0], **facts, "layers": file.layers}
    write_text(Path(file.path), json_text(content))


def _read_rotary_file(name: str) -> RotaryFile:
    path = user_path(name)
    try:
        content = _Content.model_validate(read_json(path), strict=True)
        check_rotary(content.layers, content.rope_parameters)
    except RotaryError as error:
        raise ConfigError(f"rotary: {path}: {error}. {_REMEDY}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"rotary: {path}: {json_problem(error)}. {_REMEDY}") from error
    layers, pre_rope = content.layers, content.pre_rope
    digest = hashlib.sha256(json.dumps([layers, pre_rope], sort_keys=True).encode()).hexdigest()
    rope = content.rope_parameters
    return RotaryFile(str(path), digest[:16], layers, pre_rope, content.model, rope)


def difference(file: RotaryFile, dump: Dump) -> tuple[str, object, object] | None:
    """What records of another model have: its name, its value there, and its value in the dump."""
    manifest = dump.manifest
    if manifest is None:
        return None
    rope = manifest.rope_parameters or {}
    found: list[tuple[str, object, object]] = [
        ("pre_rope", file.pre_rope, bool(manifest.pre_rope)),
        ("model", file.model, manifest.model or file.model),
        *(
            (f"rope_parameters.{name}", file.rope.get(name, rope[name]), rope[name])
            for name in rope
        ),
    ]
    known = {entry.get("layer"): entry for entry in file.layers}
    for entry in manifest.layers or []:
        number = entry.get("layer")
        if number is None:
            continue
        if number not in known:
            return f"layer {number!r:.20}", "missing", "listed"
        found += [
            (f"{name} of layer {number}", known[number].get(name), entry[name])
            for name in ("rope", "head_dim", "type", "window")
            if name in entry
        ]
    return next((one for one in found if one[1] != one[2]), None)


def _require_fit(file: RotaryFile, dump: Dump) -> None:
    """Raise a `ConfigError` if the records are those of another dump or model."""
    missing = sorted({head.layer for head in dump.folders} - {e.get("layer") for e in file.layers})
    if missing:
        raise ConfigError(
            f"rotary: {file.path}: has no entry for layer {missing[0]} of {dump.path}. {_REMEDY}"
        )
    found = difference(file, dump)
    if found is not None:
        name, there, here = found
        raise ConfigError(
            f"rotary: {file.path}: {name} is {there!r:.60} there and {here!r:.60} in {dump.path}: "
            f"the file is that of another model or dump. {_REMEDY}"
        )


def with_rotary(dump: Dump, name: str | None) -> Dump:
    """The dump with the rotary records of a file, if one is given. Raises a `ConfigError`."""
    if name is None:
        return dump
    file = _read_rotary_file(name)
    _require_fit(file, dump)
    return replace(dump, rotary=file)


def layer_rotation(dump: Dump, layer: int) -> RotaryRecord | None:
    """How RoPE turns the vectors of a layer: from the given file, else from `dump.json`.

    None if there is no record.
    """
    if dump.rotary is not None:
        return rotary_record(dump.rotary.layers, layer)
    return rotary_record(dump.manifest.layers if dump.manifest else None, layer)
