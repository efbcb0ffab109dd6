"""Load a model and its tokenizer.

Weights are loaded in the chosen precision and never cast afterwards: `model.to(bfloat16)` would
also cast the rotary frequencies and give wrong angles at the positions of long texts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from qk_sniffer.config import ModelSettings, TokenizerSettings
from qk_sniffer.engines.hf.gguf import (
    WIDE,
    add_special_tokens_of,
    gguf_path,
    model_title,
)
from qk_sniffer.engines.hf.layout import (
    HfLayout,
    decoder_config,
    decoder_of,
    text_config,
    vocabulary_of,
)
from qk_sniffer.engines.hf.probing import probe
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.files import user_path
from qk_toolkit.model_files import Note, files_hash
from qk_toolkit.raised_in import is_our_bug
from qk_toolkit.settings import merged, nearest

_STD = 0.02  # of weights that the code of a model does not initialise
_MULTI_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and its origin."""

    model: Any
    commit: str | None  # of a model from the Hub
    files: str | None = None  # hash of the files of a local model
    title: str = ""  # its name for readers, such as the name in the header of a GGUF file

    @property
    def text_config(self) -> Any:
        """The decoder's config."""
        return text_config(self.model)

    @property
    def dtype(self) -> str:
        """Precision of the weights."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def attention(self) -> str:
        """The attention implementation in use."""
        return str(self.text_config._attn_implementation)

    @property
    def device(self) -> str:
        """The type of the device."""
        return str(self.model.device.type)

    @property
    def vocabulary(self) -> int:
        """The number of tokens that have an embedding."""
        return vocabulary_of(decoder_of(self.model))

    @cached_property
    def layout(self) -> HfLayout:
        """The layers of the model, measured with forwards of a few tokens."""
        return probe(self.model)

    @property
    def engine_record(self) -> Mapping[str, Any]:
        """Nothing: every dump records the version of transformers."""
        return {}

    @property
    def angles_depend_on_batch(self) -> bool:
        """Whether the rotary angles of a text depend on the longest text of its batch."""
        return bool(self.layout.rotary_tables)

    @property
    def context(self) -> int | None:
        """The context length in the model's config."""
        return context_of(self.text_config)


def context_of(config: Any) -> int | None:
    """The context length in a decoder's config."""
    positions = getattr(config, "max_position_embeddings", None)
    return int(positions) if positions else None


def _dtype(settings: ModelSettings) -> str:
    """The setting `dtype`; weights of a GGUF file are unpacked to float32 by default."""
    return WIDE if settings.dtype == "auto" and settings.gguf_file else settings.dtype


def precision_of(settings: ModelSettings, config: Any) -> torch.dtype:
    """The precision of the weights when they are loaded."""
    if _dtype(settings) != "auto":
        return cast(torch.dtype, getattr(torch, _dtype(settings)))
    found = getattr(decoder_config(config), "dtype", None) or getattr(config, "dtype", None)
    return found if isinstance(found, torch.dtype) else torch.float32


def load_model_config(settings: ModelSettings) -> Any:
    """The model's config with the overrides merged in."""
    _require_files(settings)
    with loading_errors("model.name", settings.name):
        auto = transformers.AutoConfig
        config = auto.from_pretrained(_model_source(settings), **_options(settings))
    if not settings.config_overrides:
        return config
    overrides = _checked_overrides(config, settings.config_overrides, settings.name)
    with loading_errors("model.config_overrides", in_short(settings.config_overrides)):
        return type(config).from_dict(merged(config.to_dict(), overrides))


def load_model(settings: ModelSettings, device: str, note: Note = lambda text: None) -> LoadedModel:
    """The model with its weights, on `device` or as `device_map` specifies.

    `note` is called with a message before each slow step.
    """
    _require_files(settings)
    folder = user_path(settings.name)
    files = files_hash(folder, settings.gguf_file, note)
    config = load_model_config(settings)
    device = settings.device_map or device
    title = settings.name
    if settings.gguf_file is not None:
        title = model_title(gguf_path(settings))
        note(f"{settings.gguf_file}: unpacking its weights to {_dtype(settings)}")
    if settings.random_weights:
        title += " (random weights)"
        with quiet_transformers(), loading_errors("model.name", settings.name):
            model = _random_model(settings, config, device)
    else:
        with quiet_transformers(), loading_errors("model.name", settings.name):
            model = _with_weights(settings, config, device)
    return LoadedModel(model.eval(), commit_of(settings), files, title)


def _with_weights(settings: ModelSettings, config: Any, device: str) -> Any:
    options = {
        "config": config,
        "dtype": _dtype(settings),
        "device_map": device,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # they are named below
        **_attention(settings, config),
        **_options(settings),
    }
    kinds: list[Any] = [transformers.AutoModel, transformers.AutoModelForCausalLM]
    for kind in kinds:
        model, report = kind.from_pretrained(_model_source(settings), **options)
        if not report["missing_keys"]:  # some checkpoints fit only the class with an output head
            break
    for problem in ("missing_keys", "mismatched_keys"):
        keys = sorted(key if isinstance(key, str) else str(key[0]) for key in report[problem])
        if keys:
            raise ConfigError(
                f"model.name: {settings.name}: {len(keys)} weights are missing or have the wrong "
                f"shape in the checkpoint, the first is {keys[0]}; fetch the model again, or "
                "correct model.config_overrides"
            )
    return model


def _require_files(settings: ModelSettings) -> None:
    """Refuse a folder that holds no model, or only GGUF files of which none is chosen."""
    folder, file = user_path(settings.name), settings.gguf_file
    if not folder.is_dir():
        return
    if file is not None:
        gguf_path(settings)
    elif not any(folder.glob("*config.json")):
        found = sorted(path.name for path in folder.glob("*.gguf"))
        raise ConfigError(
            f"model.name: {settings.name}: holds GGUF files only; set model.gguf_file to {found[0]}"
            if found
            else f"model.name: {settings.name}: holds no model (config.json)"
        )


def _attention(settings: ModelSettings, config: Any) -> dict[str, Any]:
    """The attention of the settings; eager for models with a softcap, which sdpa ignores.

    transformers 5.21 and newer make the same choice.
    """
    name = settings.attn_implementation
    if name is None and getattr(decoder_config(config), "attn_logit_softcapping", None):
        name = "eager"
    return {} if name is None else {"attn_implementation": name}


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide warnings of transformers, such as its report of unused weights."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def commit_of(settings: ModelSettings) -> str | None:
    """The commit of a model from the Hub, from the path of its files in the cache."""
    if user_path(settings.name).exists():
        return None
    from huggingface_hub import try_to_load_from_cache

    file = settings.gguf_file or "config.json"
    found = try_to_load_from_cache(settings.name, file, revision=settings.revision)
    snapshot = re.search(r"snapshots/([0-9a-f]{40})/", Path(str(found)).as_posix())
    return snapshot[1] if snapshot else None


def built_model(settings: ModelSettings, config: Any, dtype: torch.dtype | None) -> nn.Module:
    """The model that the config describes, without the weights of the checkpoint.

    Without `dtype` it has the precision of the config.
    """
    options = {"trust_remote_code": settings.trust_remote_code, **_attention(settings, config)}
    if dtype is not None:
        options["dtype"] = dtype
    auto: Any = transformers.AutoModel
    model: nn.Module = auto.from_config(config, **options)
    return model


def _random_model(settings: ModelSettings, config: Any, device: str) -> nn.Module:
    dtype = None if settings.dtype == "auto" else getattr(torch, settings.dtype)
    model = random_model(lambda: built_model(settings, config, dtype), settings.random_seed)
    if device not in _MULTI_DEVICE_MAPS:
        return model.to(device)  # the precision stays
    return _spread_over(model, device)


def random_model(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The model that `build` makes on the CPU, with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]), _uninitialised_is_nan():
        torch.manual_seed(seed)
        model = build()
        for weight in model.parameters():
            if not torch.isfinite(weight).all():
                nn.init.normal_(weight, std=_STD)
    return model


def _spread_over(model: nn.Module, device_map: str) -> nn.Module:
    """The model on several devices."""
    kind: Any = type(model)
    config: Any = model.config
    weights = {"config": config, "state_dict": model.state_dict(), "dtype": model.dtype}
    attention = config._attn_implementation
    spread: nn.Module = kind.from_pretrained(
        None, attn_implementation=attention, device_map=device_map, **weights
    )
    return spread


@contextmanager
def _uninitialised_is_nan() -> Iterator[None]:
    """Fill uninitialised memory with NaN, so that it can be found."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


def load_tokenizer(settings: TokenizerSettings, model: ModelSettings) -> Any:
    """The tokenizer of the settings, or of the model."""
    if settings.name is None:
        _require_files(model)
        name, options = model.name, _options(model)
        if settings.revision is not None:
            options["revision"] = settings.revision
    else:
        name = settings.name
        options = {"revision": settings.revision, "trust_remote_code": model.trust_remote_code}
    is_tokenizer_fault = settings.name or settings.revision or user_path(name).is_dir()
    setting = "tokenizer.name" if is_tokenizer_fault else "model.name"
    with loading_errors(setting, name):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            _source(name, setting),
            **{key: value for key, value in options.items() if value is not None},
        )
        if settings.name is None and model.gguf_file is not None:
            add_special_tokens_of(gguf_path(model), tokenizer)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # there was no tokenizer file
        raise ConfigError(
            f"tokenizer.name: {name}: has no vocabulary; set tokenizer.name to a model or folder "
            "that has tokenizer files"
        )
    return tokenizer


def _options(settings: ModelSettings) -> dict[str, Any]:
    options: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code}
    if settings.revision is not None:
        options["revision"] = settings.revision
    if settings.gguf_file is not None:
        options["gguf_file"] = settings.gguf_file
    return options


def _model_source(settings: ModelSettings) -> str:
    return _source(settings.name, "model.name")


def _source(name: str, setting: str) -> str:
    path = user_path(name)
    if path.is_dir():
        return str(path)
    if path.exists():
        hint = " (and model.gguf_file for a GGUF file)" if setting == "model.name" else ""
        raise ConfigError(f"{setting}: {name}: is a file; give its folder{hint}")
    if name.startswith((".", "/", "~")):
        raise ConfigError(f"{setting}: {name}: does not exist")
    return name


@contextmanager
def loading_errors(setting: str, value: str) -> Iterator[None]:
    """Turn a loading error into one line that names the setting and its value."""
    try:
        yield
    except (ConfigError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # transformers and the code of models raise errors of all types
        if is_our_bug(error):
            raise
        message = " ".join(str(error).split())
        if "trust_remote_code" in message:
            message = "needs its own code; if you trust this code, set model.trust_remote_code"
        elif isinstance(error, OSError) and not user_path(value).exists():
            message = f"is neither a local folder nor a model that can be fetched: {message}"
        raise ConfigError(f"{setting}: {value}: {message[:400]}") from error


def _checked_overrides(config: Any, overrides: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The overrides with the current names of their fields.

    Unknown fields, texts in place of numbers, and invalid rope parameters are refused.
    """
    renamed = _standard_names(overrides)
    _check_overrides(config, renamed, model)
    return renamed


def _check_overrides(
    config: Any, overrides: Mapping[str, Any], model: str, prefix: str = ""
) -> None:
    values = config.to_dict()
    for name, change in overrides.items():
        if name not in values and not hasattr(config, name):
            raise ConfigError(
                f"model.config_overrides: {prefix}{name}: the config of {model} has no such field"
                f"{nearest(name, values, prefix)}"
            )
        old = getattr(config, name, None)
        if isinstance(old, transformers.PreTrainedConfig) and isinstance(change, Mapping):
            _check_overrides(old, change, model, f"{prefix}{name}.")
        if isinstance(old, int | float) and isinstance(change, str):
            raise ConfigError(
                f"model.config_overrides: {prefix}{name}: {change!r} given, "
                f"expected something like {old!r}"
            )
        if name == "rope_parameters" and isinstance(change, Mapping):
            _check_rope(old, change, prefix)


def _check_rope(old: Any, change: Mapping[str, Any], prefix: str) -> None:
    kinds = [kind for kind, values in (old or {}).items() if isinstance(values, Mapping)]
    unknown = [key for key in change if kinds and key not in kinds]
    if unknown:
        raise ConfigError(
            f"model.config_overrides: {prefix}rope_parameters.{unknown[0]}: this model has one set "
            f"of rope parameters per type of layer; put it under {' or '.join(kinds)}"
        )
    for values in [change[kind] for kind in kinds if kind in change] or [change]:
        kind = values.get("rope_type")
        if kind not in (None, "default", *ROPE_INIT_FUNCTIONS):
            raise ConfigError(
                f"model.config_overrides: {prefix}rope_parameters.rope_type: {kind!r} given, "
                f"expected one of {', '.join(sorted({'default', *ROPE_INIT_FUNCTIONS}))}"
            )


def _standard_names(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Rename `rope_scaling`, the older name of `rope_parameters`."""
    names = {"rope_scaling": "rope_parameters"}
    return {
        names.get(key, key): _standard_names(value) if isinstance(value, Mapping) else value
        for key, value in overrides.items()
    }
