"""Rotary records in a file of their own, for a dump without them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, field_validator

from qk_dump.layers import LayerRecord, RotaryError, RotaryFile, check_rotary, layer_records
from qk_dump.layout import Dump
from qk_dump.manifest import json_problem, json_text
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
    layers: list[LayerRecord]

    @field_validator("layers", mode="before")
    @classmethod
    def _layers_once(cls, entries: Any) -> Any:
        return layer_records(entries) if isinstance(entries, list) else entries


def write_rotary_file(file: RotaryFile) -> None:
    """Write the records of a model to their path."""
    facts = {"model": file.model, "rope_parameters": file.rope, "pre_rope": file.pre_rope}
    layers = [record.to_json() for record in file.layers]
    content = {"format": get_args(_Format)[0], **facts, "layers": layers}
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
    hashed = json.dumps([[record.to_json() for record in layers], pre_rope], sort_keys=True)
    digest = hashlib.sha256(hashed.encode()).hexdigest()
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
    known = {record.layer: record for record in file.layers}
    for record in manifest.layers or []:
        own = known.get(record.layer)
        if own is None:
            return f"layer {record.layer}", "missing", "listed"
        found += [
            (f"{name} of layer {record.layer}", getattr(own, name), value)
            for name in ("rope", "head_dim", "type", "window")
            if (value := getattr(record, name)) is not None
        ]
    return next((one for one in found if one[1] != one[2]), None)


def _require_fit(file: RotaryFile, dump: Dump) -> None:
    """Raise a `ConfigError` if the records are those of another dump or model."""
    missing = sorted({head.layer for head in dump.folders} - {one.layer for one in file.layers})
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
