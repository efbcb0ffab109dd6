"""Rotary records in a file of their own, for a dump whose `dump.json` cannot be changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qk_dump.layout import Dump
from qk_dump.limits import MOST_LAYERS
from qk_dump.manifest import MOST_MANIFEST_BYTES, json_text
from qk_dump.rotary import RotaryError, RotaryRecord
from qk_dump.rotary_records import RotaryFile, check_rotary, rotary_record
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_json, user_path, write_text

_FORMAT = "rotary records"
_REMEDY = "Make it again with attention-plasticity add-rotary."


def write_rotary_file(
    path: Path, model: str, pre_rope: bool, layers: Sequence[Mapping[str, Any]]
) -> None:
    """Write the records; `layers` are entries as in `dump.json`."""
    content = {"format": _FORMAT, "model": model, "pre_rope": pre_rope, "layers": list(layers)}
    write_text(path, json_text(content))


def read_rotary_file(name: str) -> RotaryFile:
    """Read and check a file of rotary records. Raises a `ConfigError`."""
    path = user_path(name)
    try:
        content = read_json(path, most_bytes=MOST_MANIFEST_BYTES, int64=True)
    except OSError as error:
        raise ConfigError(f"rotary: {path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"rotary: {path}: is not JSON ({error}). {_REMEDY}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ConfigError(f"rotary: {path}: is not a file of rotary records. {_REMEDY}")
    layers: Any = content.get("layers")
    pre_rope: Any = content.get("pre_rope")
    try:
        _check_layers(layers, pre_rope)
    except RotaryError as error:
        raise ConfigError(f"rotary: {path}: {error}. {_REMEDY}") from error
    text = json.dumps([layers, pre_rope], sort_keys=True)
    return RotaryFile(str(path), hashlib.sha256(text.encode()).hexdigest()[:16], layers, pre_rope)


def _check_layers(layers: Any, pre_rope: Any) -> None:
    if not isinstance(pre_rope, bool):
        raise RotaryError(f"pre_rope: expected true or false, got {pre_rope!r:.40}")
    if not isinstance(layers, list) or not 1 <= len(layers) <= MOST_LAYERS:
        raise RotaryError(f"layers: expected a list of 1 to {MOST_LAYERS} layers")
    for entry in layers:
        if not isinstance(entry, dict):
            raise RotaryError(f"layers: expected objects, got {entry!r:.40}")
        layer = entry.get("layer")
        if type(layer) is not int or not 0 <= layer < MOST_LAYERS:
            raise RotaryError(f"layers: expected a number of a layer, got {layer!r:.40}")
    if len({entry["layer"] for entry in layers}) < len(layers):
        raise RotaryError("layers: a layer is given twice")
    check_rotary(layers)


def require_fit(file: RotaryFile, dump: Dump) -> None:
    """Raise a `ConfigError` if the records are those of another dump."""
    manifest = dump.manifest
    if manifest is not None and bool(manifest.pre_rope) != file.pre_rope:
        raise ConfigError(
            f"rotary: {file.path}: pre_rope is {file.pre_rope} there and "
            f"{bool(manifest.pre_rope)} in {dump.path}. {_REMEDY}"
        )
    known = {entry["layer"]: entry for entry in file.layers}
    missing = sorted({head.layer for head in dump.folders} - known.keys())
    if missing:
        raise ConfigError(
            f"rotary: {file.path}: has no entry for layer {missing[0]} of {dump.path}. {_REMEDY}"
        )
    for entry in (manifest.layers if manifest else None) or []:
        other = known.get(entry.get("layer", -1), {})
        for name in ("rope", "head_dim", "type"):
            if name in entry and name in other and entry[name] != other[name]:
                raise ConfigError(
                    f"rotary: {file.path}: {name} of layer {entry['layer']} is {other[name]!r:.40} "
                    f"there and {entry[name]!r:.40} in {dump.path}. {_REMEDY}"
                )


def with_rotary(dump: Dump, name: str | None) -> Dump:
    """The dump with the rotary records of a file, if one is given. Raises a `ConfigError`."""
    if name is None:
        return dump
    file = read_rotary_file(name)
    require_fit(file, dump)
    return replace(dump, rotary=file)


def layer_rotation(dump: Dump, layer: int) -> RotaryRecord | None:
    """How RoPE turns the vectors of a layer: from the given file, else from `dump.json`.

    None if there is no record.
    """
    if dump.rotary is not None:
        return rotary_record(dump.rotary.layers, layer)
    return rotary_record(dump.manifest.layers if dump.manifest else None, layer)
