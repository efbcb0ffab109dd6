"""`dump.json`: what a capture says about itself, so that no config has to repeat it.

Reading a dump never requires the manifest. When it is there, the head layout and the bucket
geometry come from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from qk_dump.errors import ConfigError
from qk_dump.files import write_text

MANIFEST_NAME = "dump.json"
FORMAT_VERSION = 1


class DumpManifest(BaseModel):
    """Facts of a capture. Every field may be absent; unknown ones are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    format_version: int = Field(default=1, ge=1, le=FORMAT_VERSION)
    model: str | None = None
    revision: str | None = None
    num_layers: int | None = Field(default=None, ge=1)
    num_q_heads: int | None = Field(default=None, ge=1)
    num_k_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=1)
    layer_types: list[str] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_scale: float | None = None
    bucket_type: Literal["uniform", "log"] | None = None
    min_bucket_size: int | None = Field(default=None, ge=1)
    sampler: dict[str, Any] | None = None
    dtype: str | None = None
    versions: dict[str, str] | None = None
    seed: int | None = None

    @model_validator(mode="after")
    def _heads_divide(self) -> DumpManifest:
        if self.num_q_heads and self.num_k_heads and self.num_q_heads % self.num_k_heads:
            raise ValueError(
                f"num_q_heads {self.num_q_heads} is not a multiple of "
                f"num_k_heads {self.num_k_heads}"
            )
        return self


def read_manifest(path: Path) -> DumpManifest | None:
    """The manifest at `path`, or None when there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return DumpManifest.model_validate(json.loads(text), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        what = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"{path}: {where + ': ' if where else ''}{what}. "
            "Repair or remove the file; reading a dump works without it."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path}: is not JSON ({error}). Repair or remove it; reading a dump works without it."
        ) from error


def write_manifest(folder: Path, manifest: DumpManifest) -> None:
    """Write `dump.json` into a dump's folder, fields without a value left out."""
    facts = manifest.model_dump(exclude_none=True)
    write_text(folder / MANIFEST_NAME, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
