"""`dump.json`, the manifest: model, head layout, bucket geometry and settings of a capture.

A dump can be read without it. A later capture compares its plan with the plan in the manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from qk_dump.heads import (
    LARGEST_FACTOR,
    MOST_DIMENSIONS,
    MOST_EXAMPLES,
    MOST_HEADS,
    MOST_HEADS_IN_ALL,
    MOST_LAYERS,
    MOST_POSITIONS,
    SMALLEST_FACTOR,
    require_head_count,
    require_multiple,
)
from qk_dump.layers import LayerRecord, RotaryError, check_rotary, layer_records
from qk_dump.remote import DumpPath, RemotePath
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.files import parsed_json, read_json, same_place, write_text

MANIFEST_NAME = "dump.json"
FORMAT_VERSION = 1
MOST_MANIFEST_BYTES = 16 << 20


class DumpManifest(BaseModel):
    """Facts about a capture. Every field is optional; unknown fields are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    format_version: int = Field(default=1, ge=1, le=FORMAT_VERSION)
    model: str | None = None
    revision: str | None = None
    num_layers: int | None = Field(default=None, ge=1, le=MOST_LAYERS)
    num_q_heads: int | None = Field(default=None, ge=1, le=MOST_HEADS)
    num_k_heads: int | None = Field(default=None, ge=1, le=MOST_HEADS)
    head_dim: int | None = Field(default=None, ge=1, le=MOST_DIMENSIONS)
    num_examples: int | None = Field(default=None, ge=0, le=MOST_EXAMPLES)
    layer_types: list[str] | None = Field(default=None, max_length=MOST_LAYERS)
    layers: list[LayerRecord] | None = Field(default=None, max_length=MOST_LAYERS)
    rope_parameters: dict[str, Any] | None = None
    attention_scale: float | None = Field(default=None, ge=SMALLEST_FACTOR, le=LARGEST_FACTOR)
    bucket_type: Literal["uniform", "log"] | None = None
    min_bucket_size: int | None = Field(default=None, ge=1, le=MOST_POSITIONS)
    sampler: dict[str, Any] | None = None
    kept_share: dict[Literal["q", "k"], Annotated[float, Field(gt=0, le=1)]] | None = None
    eligible_q_heads: int | None = Field(default=None, ge=1, le=MOST_HEADS_IN_ALL)
    pre_rope: bool | None = None
    synthetic: dict[str, Any] | None = None
    random_weights: bool | None = None
    dtype: str | None = None
    versions: dict[str, str] | None = None
    seed: int | None = None
    capture: dict[str, Any] | None = None
    capture_id: str | None = None  # in the metadata of every file, too
    rows: dict[str, Annotated[int, Field(ge=0)]] | None = None  # of every head, by its folder

    @field_validator("layers", mode="before")
    @classmethod
    def _layers_once(cls, entries: Any) -> Any:
        return layer_records(entries) if isinstance(entries, list) else entries

    @model_validator(mode="after")
    def _heads_divide(self) -> DumpManifest:
        require_multiple(self.num_q_heads, self.num_k_heads)
        require_head_count(self.num_layers or 1, self.num_q_heads or 1)
        return self

    def layer(self, number: int) -> LayerRecord | None:
        """What is known about a layer; None if it is not listed."""
        return next((one for one in self.layers or () if one.layer == number), None)


def read_manifest(path: DumpPath) -> DumpManifest | None:
    """The manifest at `path`, or None without the file."""
    try:
        manifest = DumpManifest.model_validate(_content(path), strict=True)
        check_rotary(manifest.layers or (), manifest.rope_parameters)
        return manifest
    except RotaryError as error:
        raise _unusable(path, f"layers: {error}") from error
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unusable(path, json_problem(error)) from error


def _unusable(path: DumpPath, problem: str) -> ConfigError:
    return ConfigError(
        f"{path}: {problem}. Repair or remove the file; reading a dump works without it."
    )


def _content(path: DumpPath) -> Any:
    """The value in a JSON file."""
    if isinstance(path, RemotePath):
        return parsed_json(path.read_bounded(MOST_MANIFEST_BYTES))
    return read_json(path, most_bytes=MOST_MANIFEST_BYTES)


def json_problem(error: OSError | ValueError) -> str:
    """Why a file of JSON cannot be used."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        words = problem["msg"].removeprefix("Value error, ")
        if words.startswith("Input should be"):
            words = f"expected{words[15:]}, got {in_short(problem['input'])}"
        return f"{field + ': ' if field else ''}{words}"
    return f"is not JSON ({error})"


def write_manifest(folder: Path, manifest: DumpManifest) -> None:
    """Write `dump.json` into the folder of a dump; fields without a value are left out."""
    facts = manifest.model_dump(exclude_none=True)
    write_text(folder / MANIFEST_NAME, json_text(facts))


_FREQUENCIES = re.compile(r'"frequencies": \[[^\]"]*\]')


def json_text(content: object) -> str:
    """Indented JSON; the frequencies of a rotary record are on one line."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return _FREQUENCIES.sub(lambda found: " ".join(found[0].split()), text) + "\n"


def read_plan(path: DumpPath) -> dict[str, Any] | None:
    """The plan of an unfinished capture, or None without the file."""
    try:
        return dict(_content(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(
            f"{path}: cannot be read ({reason}). Choose another output.data_root, or set "
            "overwrite to start again."
        ) from error


def plan_difference(then: Any, now: Any, *, ignored: str | None = None) -> str | None:
    """The first field that differs in two plans, with both values; None when they are equal.

    The field `ignored` is not compared.
    """
    if ignored is not None:
        then, now = ({k: v for k, v in plan.items() if k != ignored} for plan in (then, now))
    return _difference(then, now, ())


_ABSENT = object()
_MAX_SHOWN = 80  # characters of a value
_PLACES = (("dataset", "path"), ("dataset", "synthetic", "texts"), ("model", "name"))
"""Fields that may be paths. A path may be written in several ways."""


def _difference(then: object, now: object, field: tuple[str, ...]) -> str | None:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in {**now, **then}:
            inner = (*field, str(key))
            found = _difference(then.get(key, _ABSENT), now.get(key, _ABSENT), inner)
            if found is not None:
                return found
        return None
    text_then, text_now = _as_text(then), _as_text(now)
    if text_then == text_now or (field in _PLACES and _one_place(then, now)):
        return None
    shown = [text[:_MAX_SHOWN] + "…" * (len(text) > _MAX_SHOWN) for text in (text_then, text_now)]
    return f"{'.'.join(field)} ({shown[0]} then, {shown[1]} now)"


def _one_place(then: object, now: object) -> bool:
    return isinstance(then, str) and isinstance(now, str) and same_place(then, now)


def _as_text(value: object) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, ensure_ascii=False, sort_keys=True)
