"""CaptureConfig: every setting of a capture, in the sections people know, declared once."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_dump.limits import MOST_EXAMPLES, MOST_POSITIONS
from qk_toolkit.settings import Indices, settings_from, validated

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
SamplerType = Literal["log_uniform", "uniform", "all"]


class IgnoredSettingWarning(UserWarning):
    """A config holds settings that are accepted and have no effect."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    without_effect: ClassVar[dict[str, str]] = {}
    """Fields of the original capture tool, which its users' files hold, and what holds instead."""


class DatasetSettings(_Section):
    """Where texts come from."""

    path: str = Field(
        min_length=1,
        description="Hub dataset, or a local text, JSONL, CSV or Parquet file, "
        "or a folder of such files",
    )
    name: str | None = Field(default=None, description="subset of a Hub dataset")
    revision: str | None = Field(default=None, description="branch, tag or commit of it")
    split: str = Field(default="train", min_length=1, description="split to read")
    text_column: str = Field(default="text", min_length=1, description="column with the text")
    id_column: str | None = Field(
        default=None,
        description="column with an id to remember (default: the row number, or the name of a "
        "text file)",
    )
    max_samples: int | None = Field(
        default=None,
        ge=1,
        le=MOST_EXAMPLES,
        description="texts to take from the start (default: all)",
    )
    streaming: bool = Field(
        default=False, description="read while capturing instead of downloading first"
    )


class ModelSettings(_Section):
    """Which model, and how it is loaded. Weights are never cast after loading."""

    name: str = Field(min_length=1, description="model on the Hub, or a local folder")
    revision: str | None = Field(default=None, description="branch, tag or commit of the model")
    gguf_file: str | None = Field(
        default=None, min_length=1, description="GGUF file inside the model's folder or repository"
    )
    dtype: Dtype = Field(default="auto", description="precision of weights and activations")
    device_map: str | None = Field(
        default=None,
        description="cpu, cuda, cuda:1, or auto to spread over all GPUs (default: a GPU when there "
        "is one; one per process when several are started)",
    )
    attn_implementation: str | None = Field(
        default=None, description="sdpa, eager, flash_attention_2, … (default: the model's own)"
    )
    config_overrides: dict[str, Any] | None = Field(
        default=None,
        description="changes to the model's config, merged into nested mappings, such as "
        "{rope_parameters: {rope_type: yarn, factor: 4.0}}",
    )
    trust_remote_code: bool = Field(default=False, description="run code that comes with the model")


class TokenizerSettings(_Section):
    """How texts become tokens."""

    without_effect: ClassVar[dict[str, str]] = {
        "padding": "texts are padded on the right, as far as a batch needs",
        "trust_remote_code": "model.trust_remote_code holds for the tokenizer as well",
    }

    name: str | None = Field(default=None, description="tokenizer (default: the model's)")
    revision: str | None = Field(default=None, description="branch, tag or commit of it")
    max_length: int | None = Field(
        default=None, ge=1, description="tokens kept of each text (default: the model's context)"
    )
    add_special_tokens: bool = Field(
        default=True, description="let the tokenizer add its begin and end tokens"
    )
    padding_side: str = Field(
        default="right", description="right; left padding would shift positions and is refused"
    )

    @model_validator(mode="after")
    def _right_only(self) -> TokenizerSettings:
        if self.padding_side != "right":
            raise ValueError(
                f"padding_side: expected right, got {self.padding_side!r}: any other padding "
                "shifts the positions of a text"
            )
        return self


class InferenceSettings(_Section):
    """How the model is run."""

    without_effect: ClassVar[dict[str, str]] = {
        "autocast_dtype": "there is no autocast: vectors are in model.dtype",
        "debug_logging": "there is no debug log",
    }

    batch_size: int = Field(default=1, ge=1, description="texts run together")


class SamplerSettings(_Section):
    """Which positions of a text are kept."""

    type: SamplerType = Field(
        default="log_uniform",
        description="buckets that double in size, buckets of one size, or every position",
    )
    base_rate: float = Field(
        default=1.0, gt=0, description="positions kept per bucket and text, on average"
    )
    seed: int = Field(default=0, ge=0, description="seed of the choice of positions")


class HeadSamplingSettings(_Section):
    """A random subset of query heads, with the key heads they read."""

    count: int = Field(ge=1, description="query heads to capture, over all eligible layers")
    seed: int = Field(default=0, ge=0, description="seed of the choice of heads")


class CaptureSettings(_Section):
    """What is kept."""

    sampler: SamplerSettings = Field(default=SamplerSettings())
    min_bucket_size: int = Field(
        default=128,
        ge=1,
        le=MOST_POSITIONS,
        description="positions in a uniform bucket, or in the first log bucket",
    )
    capture_queries: bool = Field(default=True, description="keep queries")
    capture_keys: bool = Field(default=True, description="keep keys")
    layers: Indices | None = Field(
        default=None, description="layers to capture, such as 0-3,8 (default: all)"
    )
    heads: Indices | None = Field(
        default=None,
        description="query heads to capture in every layer, with their key heads (default: all)",
    )
    head_sampling: HeadSamplingSettings | None = Field(default=None)
    full_attention_only: bool = Field(
        default=False, description="leave out layers whose queries do not see all earlier keys"
    )
    capture_pre_rope: bool = Field(
        default=False, description="keep vectors before the rotary embedding"
    )
    capture_token_strings: bool = Field(
        default=False, description="also write each row's token as text"
    )
    max_rows_per_batch: int = Field(
        default=65_536,
        ge=1,
        description="rows of a layer moved off the device at a time; bounds memory, changes no "
        "result",
    )

    @model_validator(mode="after")
    def _something_is_kept(self) -> CaptureSettings:
        if not (self.capture_queries or self.capture_keys):
            raise ValueError("capture_queries: neither queries nor keys would be captured")
        return self


class OutputSettings(_Section):
    """Where the dump goes."""

    without_effect: ClassVar[dict[str, str]] = {
        "readme_path": "the card is README.md in output.data_root",
    }

    data_root: str = Field(
        min_length=1,
        description="folder of the dump; {model} and {revision} are replaced by the model's",
    )
    vector_dtype: Literal["float32", "float16"] = Field(
        default="float32", description="precision of the vectors on disk"
    )
    save_seconds: float = Field(
        default=60.0,
        gt=0,
        description="finished texts go to disk at least this often; so much a dying machine loses",
    )
    hf_repo_id: str | None = Field(default=None, description="dataset on the Hub to publish to")
    hf_branch: str | None = Field(
        default=None, description="branch there, one per model; {model} and {revision} likewise"
    )
    private: bool = Field(default=False, description="create that dataset as a private one")


class CaptureConfig(_Section):
    """Settings of one capture. `model_dump()` gives them back as plain values."""

    dataset: DatasetSettings
    model: ModelSettings
    tokenizer: TokenizerSettings = Field(default=TokenizerSettings())
    inference: InferenceSettings = Field(default=InferenceSettings())
    capture: CaptureSettings = Field(default=CaptureSettings())
    output: OutputSettings
    overwrite: bool = Field(
        title="how to run",
        default=False,
        description="start anew; the dump that lies in the folder is discarded",
    )
    dry_run: bool = Field(
        title="how to run",
        default=False,
        description="print heads, expected rows and bytes, then stop",
    )

    @property
    def data_root(self) -> str:
        """`output.data_root` with the model's names filled in."""
        return self._filled(self.output.data_root)

    @property
    def hf_branch(self) -> str | None:
        """`output.hf_branch` with the model's names filled in."""
        return self._filled(self.output.hf_branch) if self.output.hf_branch else None

    def _filled(self, text: str) -> str:
        model = self.model.name.rstrip("/").rsplit("/", 1)[-1]
        return text.replace("{model}", model).replace("{revision}", self.model.revision or "main")


def make_config(values: dict[str, Any] | None = None, /, **sections: Any) -> CaptureConfig:
    """A checked config from plain values, with the same messages as a YAML file's."""
    notes: list[str] = []
    config = validated(CaptureConfig, {**(values or {}), **sections}, note=notes.append)
    _warn(notes)
    return config


def load_config(path: str | os.PathLike[str], flags: dict[str, str] | None = None) -> CaptureConfig:
    """A checked config from a YAML file, overridden by flags such as `model.name`."""
    notes: list[str] = []
    config = settings_from(CaptureConfig, yaml_path=Path(path), flags=flags, note=notes.append)
    _warn(notes)
    return config


def _warn(notes: list[str]) -> None:
    for note in notes:
        warnings.warn(note, IgnoredSettingWarning, stacklevel=3)
