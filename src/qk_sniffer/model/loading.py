"""Loading a model and its tokenizer, in the wanted precision from the start.

Nothing is cast afterwards: `model.to(bfloat16)` would also cast the rotary frequencies and turn
positions of long texts by a wrong angle.
"""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from qk_sniffer.config import ModelSettings, TokenizerSettings
from qk_sniffer.model.files import Note, files_hash, require_same
from qk_sniffer.model.gguf import add_special_tokens_of, converted_model, gguf_path
from qk_sniffer.model.layout import decoder_config, text_config
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path
from qk_toolkit.settings import nearest

_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what is to be remembered of it."""

    model: Any
    commit: str | None  # of the Hub's repository, when it came from there
    files: str | None = None  # a hash of a local model's files, when it did not

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

    def slower_than_float32(self) -> float:
        """How many times longer than in float32 a product takes here; 1 on other devices."""
        dtype = self.model.dtype
        if self.model.device.type != "cpu" or dtype == torch.float32:
            return 1.0
        return _product_seconds(dtype) / _product_seconds(torch.float32)

    @property
    def context(self) -> int | None:
        """Positions the model's config declares."""
        return context_of(self.text_config)


def _product_seconds(dtype: torch.dtype) -> float:
    """The shortest of a few times of a small matrix product on the CPU."""
    left, right = torch.ones(64, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells that it falls back to a slower path
        for _ in range(5):
            began = time.perf_counter()
            left @ right
            seconds.append(time.perf_counter() - began)
    return min(seconds)


def context_of(config: Any) -> int | None:
    """Positions a decoder's config declares."""
    declared = getattr(config, "max_position_embeddings", None)
    return int(declared) if declared else None


def load_model_config(settings: ModelSettings) -> Any:
    """The model's config with the overrides merged in."""
    with _told_as("model.name", settings.name):
        config = transformers.AutoConfig.from_pretrained(_place(settings.name), **_common(settings))
    if not settings.config_overrides:
        return config
    overrides = _standard_names(settings.config_overrides)
    values = config.to_dict()
    _check_overrides(config, overrides, settings.name)
    with _told_as("model.config_overrides", str(settings.config_overrides)):
        return type(config).from_dict(merged(values, overrides))


def _check_overrides(
    config: Any, overrides: Mapping[str, Any], model: str, prefix: str = ""
) -> None:
    """Refuse unknown fields, words for numbers, and a rope for no type of layer."""
    values = config.to_dict()
    for name, change in overrides.items():
        if name not in values and not hasattr(config, name):
            raise ConfigError(
                f"model.config_overrides: {prefix}{name}: {model} has no such field"
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
    lost = [key for key in change if kinds and key not in kinds]
    if lost:
        raise ConfigError(
            f"model.config_overrides: {prefix}rope_parameters.{lost[0]}: this model has one set of "
            f"rope parameters per type of layer; put it under {' or '.join(kinds)}"
        )
    for values in [change[kind] for kind in kinds if kind in change] or [change]:
        kind = values.get("rope_type")
        if kind not in (None, "default", *ROPE_INIT_FUNCTIONS):
            raise ConfigError(
                f"model.config_overrides: {prefix}rope_parameters.rope_type: {kind!r} given, "
                f"expected one of {', '.join(sorted({'default', *ROPE_INIT_FUNCTIONS}))}"
            )


def load_model(settings: ModelSettings, device: str, note: Note = lambda text: None) -> LoadedModel:
    """The backbone with its weights, on `device` or spread as `device_map` says.

    A GGUF file is converted first. `note` is told of what takes long.
    """
    _require_device(settings.device_map)
    asked, settings = settings, _converted(settings, note)
    folder = user_path(settings.name)
    files = files_hash(folder, settings.gguf_file, note)
    config = load_model_config(settings)
    options = {
        "config": config,
        "dtype": settings.dtype,
        "device_map": settings.device_map or device,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # they are refused below, by name
        **_attention(settings, config),
        **_common(settings),
    }
    with quiet_transformers(), _loading(settings):
        model, told = _weighted(transformers.AutoModel, settings.name, options)
        if told["missing_keys"]:  # a checkpoint laid out for the class with a head only
            model, told = _weighted(transformers.AutoModelForCausalLM, settings.name, options)
    _refuse_random_weights(asked.name, told)
    require_same(folder, settings.gguf_file, files)
    return LoadedModel(model.eval(), _commit(asked), files)


def _converted(settings: ModelSettings, note: Note, convert_now: bool = True) -> ModelSettings:
    """The settings, with a converted checkpoint in the place of a GGUF file."""
    _refuse_bare_gguf(settings)
    with _told_as("model.name", settings.name), quiet_transformers():
        return converted_model(settings, note, convert_now=convert_now)


def _refuse_bare_gguf(settings: ModelSettings) -> None:
    """A folder of nothing but GGUF files: transformers would ask for other files."""
    folder = user_path(settings.name)
    if settings.gguf_file is not None or not folder.is_dir() or (folder / "config.json").exists():
        return
    found = sorted(path.name for path in folder.glob("*.gguf"))
    if found:
        raise ConfigError(
            f"model.name: {settings.name}: holds GGUF files only; add --model.gguf_file {found[0]}"
        )


def _require_device(device_map: str | None) -> None:
    """Refuse a device that does not exist, or not here."""
    if device_map is None or device_map in _SPREAD:
        return
    try:
        torch.empty(0, device=device_map)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"model.device_map: {device_map}: cannot be used here; expected cpu, cuda, cuda:1 or "
            f"auto ({' '.join(str(error).split())[:100]})"
        ) from error


@contextmanager
def _loading(settings: ModelSettings) -> Iterator[None]:
    """Tell a failure by the model's name, or by the attention where it speaks of the one asked."""
    asked = settings.attn_implementation
    try:
        with _told_as("model.name", settings.name):
            yield
    except ConfigError as error:
        message = str(error).removeprefix(f"model.name: {settings.name}: ")
        if asked is None or not re.search("attn_implementation|FlashAttention", message):
            raise
        raise ConfigError(f"model.attn_implementation: {asked}: {message}") from error


def _attention(settings: ModelSettings, config: Any) -> dict[str, Any]:
    """The attention asked for; else eager where scores are capped, as sdpa leaves the cap out.

    Transformers choose so themselves from 5.21 on.
    """
    asked = settings.attn_implementation
    if asked is None and getattr(decoder_config(config), "attn_logit_softcapping", None):
        asked = "eager"
    return {} if asked is None else {"attn_implementation": asked}


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Errors of transformers only: its report of an unused head helps nobody here."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def _commit(settings: ModelSettings) -> str | None:
    """The commit of a model of the Hub, by the folder of the cache its files came from."""
    if user_path(settings.name).exists():
        return None
    from huggingface_hub import try_to_load_from_cache

    file = settings.gguf_file or "config.json"
    found = try_to_load_from_cache(settings.name, file, revision=settings.revision)
    snapshot = re.search(r"snapshots/([0-9a-f]{40})/", Path(str(found)).as_posix())
    return snapshot[1] if snapshot else None


def _weighted(kind: Any, name: str, options: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    model, told = kind.from_pretrained(_place(name), **options)
    return model, told


def empty_model(settings: ModelSettings) -> nn.Module:
    """The same model without memory for its weights, for a look at its shape."""
    settings = _converted(settings, lambda text: None, convert_now=False)
    config = load_model_config(settings)
    options = {"trust_remote_code": settings.trust_remote_code, **_attention(settings, config)}
    auto: Any = transformers.AutoModel
    with _loading(settings), torch.device("meta"):
        model: nn.Module = auto.from_config(config, dtype=torch.bfloat16, **options)
    return model.eval()


def hollow_model(settings: ModelSettings) -> nn.Module:
    """The same model with zeros for weights, which take no memory, for models that need values."""
    from accelerate import init_empty_weights

    settings = _converted(settings, lambda text: None, convert_now=False)
    config = load_model_config(settings)
    options = {"trust_remote_code": settings.trust_remote_code, **_attention(settings, config)}
    auto: Any = transformers.AutoModel
    with _loading(settings), init_empty_weights(include_buffers=False):
        model: nn.Module = auto.from_config(config, dtype=torch.float32, **options)
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and weight.is_meta:
                zeros = torch.zeros((), dtype=weight.dtype).expand(weight.shape)
                module._parameters[name] = nn.Parameter(zeros, requires_grad=False)
    return model.eval()


def load_tokenizer(
    settings: TokenizerSettings,
    model: ModelSettings,
    note: Note = lambda text: None,
    *,
    convert_now: bool = True,
) -> Any:
    """The tokenizer asked for, or the model's own; a GGUF file's is converted with its weights."""
    if settings.name is None:
        model = _converted(model, note, convert_now)
        name, options = model.name, _common(model)
        if settings.revision is not None:
            options["revision"] = settings.revision
    else:
        name = settings.name
        options = {"revision": settings.revision, "trust_remote_code": model.trust_remote_code}
    own = settings.name or settings.revision or user_path(name).is_dir()
    setting = "tokenizer.name" if own else "model.name"
    with _told_as(setting, name):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            _place(name, setting),
            **{key: value for key, value in options.items() if value is not None},
        )
        if settings.name is None and model.gguf_file is not None:
            add_special_tokens_of(gguf_path(model), tokenizer)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # made without any file
        raise ConfigError(
            f"tokenizer.name: {name}: holds no vocabulary; give the model its tokenizer belongs to"
        )
    return tokenizer


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes` merged in, mapping by mapping."""
    result = dict(values)
    for name, change in changes.items():
        old = result.get(name)
        nested = isinstance(old, Mapping) and isinstance(change, Mapping)
        result[name] = merged(old, change) if nested else change  # type: ignore[arg-type]
    return result


def _standard_names(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_scaling` is what `rope_parameters` was called before; both are merged alike."""
    names = {"rope_scaling": "rope_parameters"}
    return {
        names.get(key, key): _standard_names(value) if isinstance(value, Mapping) else value
        for key, value in overrides.items()
    }


def _common(settings: ModelSettings) -> dict[str, Any]:
    options: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code}
    if settings.revision is not None:
        options["revision"] = settings.revision
    if settings.gguf_file is not None:
        options["gguf_file"] = settings.gguf_file
    return options


def _place(name: str, setting: str = "model.name") -> str:
    path = user_path(name)
    if path.is_dir():
        return str(path)
    if path.exists():
        hint = " (and model.gguf_file for a GGUF file)" if setting == "model.name" else ""
        raise ConfigError(f"{setting}: {name}: is a file; give its folder{hint}")
    if name.startswith((".", "/", "~")):
        raise ConfigError(f"{setting}: {name}: does not exist")
    return name


def _refuse_random_weights(name: str, told: Mapping[str, Any]) -> None:
    for problem in ("missing_keys", "mismatched_keys"):
        keys = sorted(key if isinstance(key, str) else str(key[0]) for key in told[problem])
        if keys:
            raise ConfigError(
                f"model.name: {name}: {len(keys)} weights are missing or misshapen in the "
                f"checkpoint and would be random, the first is {keys[0]}"
            )


@contextmanager
def _told_as(setting: str, value: str) -> Iterator[None]:
    """Turn a loading failure into one line that names the setting and its value."""
    try:
        yield
    except (ConfigError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        if "trust_remote_code" in message:
            message = "needs code of its own; if you trust it, add --model.trust_remote_code"
        elif isinstance(error, OSError) and not user_path(value).exists():
            message = f"neither a folder here nor a model that the Hub gave us: {message}"
        raise ConfigError(f"{setting}: {value}: {message[:400]}") from error
