"""CaptureConfig: all settings of a capture, in sections."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from qk_dump.heads import MOST_POSITIONS
from qk_sniffer.text_settings import DatasetSettings
from qk_sniffer.text_settings import Section as _Section
from qk_toolkit.settings import Indices, settings_from, validated
from qk_toolkit.urls import is_remote, require_usable

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
SamplerType = Literal["auto", "log_uniform", "uniform", "all"]
_OF_TRANSFORMERS = "gguf_file device_map attn_implementation config_overrides random_weights"


class IgnoredSettingWarning(UserWarning):
    """The config has settings of the original capture tool, which do not mean the same here."""


class ModelSource(_Section):
    """Where the config and the weights of a model are."""

    name: str = Field(
        title="the model", min_length=1, description="model on the Hub, or a local folder"
    )
    revision: str | None = Field(
        title="the model", default=None, description="branch, tag or commit of the model"
    )
    gguf_file: str | None = Field(
        title="the model",
        default=None,
        min_length=1,
        description="GGUF file inside the model's folder or repository",
    )
    config_overrides: dict[str, Any] | None = Field(
        title="the model",
        default=None,
        description="changes to the model's config, such as "
        "{rope_parameters: {rope_type: yarn, factor: 4.0}}; nested mappings are merged",
    )
    trust_remote_code: bool = Field(
        title="the model", default=False, description="run code that comes with the model"
    )


class ModelSettings(ModelSource):
    """The model, and how it is loaded. Weights are never cast after loading."""

    dtype: Dtype = Field(default="auto", description="precision of weights and activations")
    device_map: str | None = Field(
        default=None,
        description="cpu, cuda, or auto to use all GPUs (default: one GPU, if there is one)",
    )
    attn_implementation: str | None = Field(
        default=None, description="sdpa, eager, flash_attention_2, … (default: the model's)"
    )
    random_weights: bool = Field(
        default=False,
        description="use random weights instead of those of the checkpoint, as a baseline",
    )
    random_seed: int = Field(default=0, ge=0, description="seed of the random weights")

    @model_validator(mode="after")
    def _seed_needs_random_weights(self) -> ModelSettings:
        if self.random_seed and not self.random_weights:
            raise ValueError("random_seed: has an effect only with random_weights; leave it out")
        return self


class TokenizerSettings(_Section):
    """How texts become tokens."""

    without_effect: ClassVar[dict[str, str]] = {
        "padding": "texts are padded on the right to the longest text of the batch",
        "trust_remote_code": "model.trust_remote_code also applies to the tokenizer",
    }
    fixed_values: ClassVar[dict[str, str]] = {"padding_side": "right"}

    name: str | None = Field(default=None, description="tokenizer (default: the model's)")
    revision: str | None = Field(default=None, description="branch, tag or commit of the tokenizer")
    max_length: int | None = Field(
        default=None, ge=1, description="most tokens per text (default: the model's context)"
    )
    add_special_tokens: bool = Field(
        default=True, description="let the tokenizer add its BOS and EOS tokens"
    )


class InferenceSettings(_Section):
    """How the model is run."""

    without_effect: ClassVar[dict[str, str]] = {
        "autocast_dtype": "there is no autocast: vectors have model.dtype",
        "debug_logging": "there is no debug log",
    }

    batch_size: int = Field(default=1, ge=1, description="number of texts in a batch")


class SamplerSettings(_Section):
    """Which positions of a text are kept."""

    type: SamplerType = Field(
        default="auto",
        description="auto: equal buckets and rates that fit the texts; log_uniform: buckets that "
        "double; uniform: equal buckets; all: every position",
    )
    base_rate: float | None = Field(
        default=None,
        gt=0,
        description="positions kept per bucket and text, on average (default: 1); without "
        "a type the buckets are then log_uniform",
    )
    key_base_rate: float | None = Field(
        default=None, gt=0, description="base_rate of keys (default: as base_rate)"
    )
    seed: int = Field(default=0, ge=0, description="seed of the choice of positions")

    @model_validator(mode="before")
    @classmethod
    def _type_of_older_files(cls, values: Any) -> Any:
        """A rate without a type is one of log_uniform, which was the default."""
        if not isinstance(values, dict) or "type" in values:
            return values
        rates = (values.get("base_rate"), values.get("key_base_rate"))
        return values if rates == (None, None) else {**values, "type": "log_uniform"}

    @model_validator(mode="after")
    def _auto_chooses_the_rates(self) -> SamplerSettings:
        for name in ("base_rate", "key_base_rate"):
            if self.type == "auto" and getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: is chosen by the sampler auto; leave it out, or choose another "
                    "capture.sampler.type"
                )
        return self


class HeadSamplingSettings(_Section):
    """A random subset of query heads, and their key heads."""

    count: int = Field(ge=1, description="number of query heads, from all eligible layers together")
    seed: int = Field(default=0, ge=0, description="seed of the choice of heads")


class CaptureSettings(_Section):
    """What is captured."""

    without_effect: ClassVar[dict[str, str]] = {
        "capture_token_strings": "the token of a row is its token_id, and tokens.parquet has texts",
    }

    sampler: SamplerSettings = Field(default=SamplerSettings())
    min_bucket_size: int | None = Field(
        default=None,
        ge=1,
        le=MOST_POSITIONS,
        description="positions in a uniform bucket, or in the first log bucket (default: 128; the "
        "sampler auto chooses it)",
    )
    capture_queries: bool = Field(default=True, description="keep queries")
    capture_keys: bool = Field(default=True, description="keep keys")
    layers: Indices | None = Field(
        default=None, description="layers to capture, such as 0-3,8 (default: all)"
    )
    heads: Indices | None = Field(
        default=None,
        description="query heads to capture in every layer, and their key heads (default: all)",
    )
    head_sampling: HeadSamplingSettings | None = Field(default=None)
    full_attention_only: bool = Field(
        default=False, description="leave out layers whose queries do not see all earlier keys"
    )
    capture_pre_rope: bool = Field(
        default=False, description="keep vectors before the rotary embedding"
    )
    attention: bool = Field(
        default=True,
        description="also keep where the attention of queries goes",
    )
    tokens: bool = Field(
        default=True,
        description="also keep the tokens; not for private texts",
    )
    attended_keys: int | None = Field(
        default=None,
        ge=0,
        le=MOST_POSITIONS,
        description="keys per text and key head that are drawn in proportion to the attention "
        "they receive, on average, besides tokens 0 to 3; 0 for none (default: 2048 divided by "
        "the number of texts, at least 16)",
    )
    attended_queries: int = Field(
        default=64,
        ge=1,
        le=MOST_POSITIONS,
        description="queries per text that measure the attention of keys; they are not stored",
    )

    @model_validator(mode="after")
    def _require_queries_or_keys(self) -> CaptureSettings:
        if not (self.capture_queries or self.capture_keys):
            raise ValueError("capture_queries: neither queries nor keys would be captured")
        return self

    @model_validator(mode="after")
    def _require_attention_for_attended_keys(self) -> CaptureSettings:
        for name in ("attention", "capture_keys"):
            if self.attended_keys and not getattr(self, name):
                raise ValueError(
                    f"attended_keys: has an effect only with capture.{name}; leave it out"
                )
        return self


class OutputSettings(_Section):
    """Where the dump is written."""

    without_effect: ClassVar[dict[str, str]] = {
        "readme_path": "the card is README.md in output.data_root",
    }

    data_root: str = Field(
        min_length=1,
        description="folder of the dump, or a URL such as s3://bucket/dump; {model} and "
        "{revision} are replaced by the model's",
    )
    work_dir: str | None = Field(
        default=None,
        min_length=1,
        description="where a dump for a URL is made before it is sent (default: the cache folder); "
        "processes on several machines need a shared folder",
    )
    vector_dtype: Literal["float32", "float16"] = Field(
        default="float32", description="precision of the vectors on disk"
    )
    hf_repo_id: str | None = Field(default=None, description="dataset on the Hub to publish to")
    hf_branch: str | None = Field(
        default=None, description="its branch, one per model; {model} and {revision} are replaced"
    )
    private: bool = Field(default=False, description="create that dataset as a private one")

    @model_validator(mode="after")
    def _one_place_for_the_dump(self) -> OutputSettings:
        if self.data_root.startswith("hf://"):
            raise ValueError(
                f"data_root: {self.data_root}: is on the Hub; give a folder as data_root, and the "
                "dataset as output.hf_repo_id and output.hf_branch"
            )
        if is_remote(self.data_root):
            require_usable(self.data_root)
        if is_remote(self.data_root) and self.hf_repo_id is not None:
            raise ValueError(
                "hf_repo_id: cannot be used together with a URL in data_root; choose one"
            )
        if self.work_dir is not None and not is_remote(self.data_root):
            raise ValueError("work_dir: has an effect only if data_root is a URL; leave it out")
        return self


class VllmSettings(_Section):
    """How vLLM runs the model; only with engine vllm."""

    tensor_parallel: int = Field(
        default=1, ge=1, description="GPUs that share the heads of the model"
    )
    memory: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="part of a GPU's memory for weights and cache (default: 0.8; the capture needs "
        "some of the rest)",
    )
    options: dict[str, Any] | None = Field(
        default=None,
        description="more arguments of vllm.LLM, such as {quantization: fp8}",
    )


class RaySettings(_Section):
    """Processes of a Ray cluster that share the texts."""

    processes: int | None = Field(
        default=None, ge=1, description="number of processes (default: the GPUs by ray.gpus)"
    )
    gpus: float = Field(
        default=1.0, ge=0, description="GPUs of a process; 0 for CPUs, 0.5 for two on one GPU"
    )
    address: str | None = Field(
        default=None,
        min_length=1,
        description="address of a running cluster, such as auto (default: a cluster of this "
        "machine for this capture)",
    )

    @model_validator(mode="after")
    def _whole_gpus(self) -> RaySettings:
        if self.gpus > 1 and not self.gpus.is_integer():
            raise ValueError(
                f"gpus: {self.gpus:g} given, expected a whole number, or a part of one GPU such "
                "as 0.5"
            )
        return self


class CaptureConfig(_Section):
    """The settings of one capture. `model_dump()` returns them as plain values.

    Examples:
        >>> from qk_sniffer import CaptureConfig
        >>> files = {"dataset": {"path": "texts"}, "output": {"data_root": "data/mine"}}
        >>> config = CaptureConfig(**files, model={"name": "HuggingFaceTB/SmolLM2-135M"})
        >>> config.capture.sampler.type, config.inference.batch_size  # defaults
        ('auto', 1)
    """

    foreign_note: ClassVar[str] = (
        "These are settings of the original capture tool, which drew positions with another random "
        "generator: the same seed keeps other positions here"
    )
    rare_flags: ClassVar[tuple[str, ...]] = (
        *("dataset.path", "model.name", "output.data_root"),  # given as places
        *("dataset.name", "dataset.split", "dataset.text_column", "model.trust_remote_code"),
        *("model.revision", "model.attn_implementation", "inference.batch_size"),
        *("capture.capture_pre_rope", "output.hf_repo_id", "output.hf_branch"),
        *("capture.heads", "capture.attention", "capture.sampler.base_rate"),
        *("dataset.revision", "dataset.id_column", "dataset.streaming", "dataset.spread_samples"),
        *("dataset.synthetic", "dataset.synthetic.seed"),
        *("model.gguf_file", "model.config_overrides", "model.random_weights"),
        *("model.random_seed", "tokenizer.name", "tokenizer.revision"),
        "tokenizer.add_special_tokens",
        *("capture.capture_queries", "capture.capture_keys", "capture.full_attention_only"),
        *("capture.min_bucket_size", "capture.attended_keys", "capture.attended_queries"),
        *("capture.sampler.key_base_rate", "capture.sampler.seed", "capture.head_sampling"),
        *("output.work_dir", "output.vector_dtype", "output.private", "vllm", "ray", "finish"),
    )

    dataset: DatasetSettings
    model: ModelSettings
    tokenizer: TokenizerSettings = Field(default=TokenizerSettings())
    inference: InferenceSettings = Field(default=InferenceSettings())
    capture: CaptureSettings = Field(default=CaptureSettings())
    output: OutputSettings
    vllm: VllmSettings = Field(default=VllmSettings())
    ray: RaySettings | None = Field(default=None)
    engine: Literal["hf", "vllm"] = Field(
        title="how to run",
        default="hf",
        description="what runs the model: transformers in this process, in those of torchrun or "
        "srun, or in a Ray cluster with a section ray (hf), or vLLM (vllm)",
    )
    overwrite: bool = Field(
        title="how to run",
        default=False,
        description="discard the dump, start again; not with torchrun or Ray",
    )
    finish: bool = Field(
        title="how to run",
        default=False,
        description="write the dump of texts that are all captured; no weights are loaded",
    )
    dry_run: bool = Field(
        title="how to run",
        default=False,
        description="print heads, expected rows and bytes, then stop",
    )

    @model_validator(mode="after")
    def _finish_keeps_what_is_there(self) -> CaptureConfig:
        if self.finish and (self.overwrite or self.dry_run):
            name = "overwrite" if self.overwrite else "dry_run"
            raise ValueError(f"{name}: cannot be used together with finish; choose one")
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> CaptureConfig:
        if self.ray is not None and self.engine == "vllm":
            raise ValueError("ray: has an effect only with engine hf; leave it out")
        if self.ray is not None and self.overwrite:
            raise ValueError(
                "overwrite: several processes would empty the folder at different times; remove "
                "the dump first, and leave overwrite out"
            )
        if self.engine == "vllm":
            if self.capture.capture_pre_rope:
                raise ValueError(
                    "capture.capture_pre_rope: vLLM rotates queries and keys in place, so those "
                    "before the rotary embedding are not seen; leave it out, or use engine hf"
                )
            for name in _OF_TRANSFORMERS.split():
                if getattr(self.model, name):
                    raise ValueError(
                        f"model.{name}: has no effect with engine vllm; leave it out, or use "
                        "engine hf"
                    )
        elif self.vllm != VllmSettings():
            raise ValueError("vllm: has an effect only with engine vllm; leave it out")
        return self

    @property
    def data_root(self) -> str:
        """`output.data_root` with {model} and {revision} replaced."""
        return self._with_names(self.output.data_root)

    @property
    def hf_branch(self) -> str | None:
        """`output.hf_branch` with {model} and {revision} replaced."""
        return self._with_names(self.output.hf_branch) if self.output.hf_branch else None

    def _with_names(self, text: str) -> str:
        model = self.model.name.rstrip("/").rsplit("/", 1)[-1]
        return text.replace("{model}", model).replace("{revision}", self.model.revision or "main")


def make_config(values: dict[str, Any] | None = None, /, **sections: Any) -> CaptureConfig:
    """A checked config from plain values; errors are the same as for a YAML file.

    Examples:
        >>> from qk_sniffer import make_config
        >>> files = {"dataset": {"path": "texts"}, "output": {"data_root": "data/{model}"}}
        >>> config = make_config(files, model={"name": "HuggingFaceTB/SmolLM2-135M"})
        >>> config.data_root
        'data/SmolLM2-135M'
    """
    notes: list[str] = []
    config = validated(CaptureConfig, {**(values or {}), **sections}, note=notes.append)
    _warn(notes)
    return config


def load_config(path: str | os.PathLike[str], flags: dict[str, str] | None = None) -> CaptureConfig:
    """A checked config from a YAML file, overridden by flags such as `model.name`.

    Examples:
        >>> from pathlib import Path
        >>> from qk_sniffer import load_config
        >>> files = "dataset: {path: texts}, output: {data_root: data/mine}"
        >>> size = Path("capture.yaml").write_text("{model: {name: model}, " + files + "}")
        >>> config = load_config("capture.yaml", flags={"inference.batch_size": "4"})
        >>> config.model.name, config.inference.batch_size
        ('model', 4)
    """
    notes: list[str] = []
    config = settings_from(CaptureConfig, yaml_path=Path(path), flags=flags, note=notes.append)
    _warn(notes)
    return config


def _warn(notes: list[str]) -> None:
    for note in notes:
        warnings.warn(note, IgnoredSettingWarning, stacklevel=3)
