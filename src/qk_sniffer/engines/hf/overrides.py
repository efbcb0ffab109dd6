"""`model.config_overrides`: fields of a model's config that a user changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest


def checked_overrides(config: Any, overrides: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The overrides with the current names of their fields.

    Unknown fields, texts in place of numbers, and invalid rope parameters are refused.
    """
    renamed = _standard_names(overrides)
    _check(config, renamed, model)
    return renamed


def _check(config: Any, overrides: Mapping[str, Any], model: str, prefix: str = "") -> None:
    values = config.to_dict()
    for name, change in overrides.items():
        if name not in values and not hasattr(config, name):
            raise ConfigError(
                f"model.config_overrides: {prefix}{name}: the config of {model} has no such field"
                f"{nearest(name, values, prefix)}"
            )
        old = getattr(config, name, None)
        if isinstance(old, transformers.PreTrainedConfig) and isinstance(change, Mapping):
            _check(old, change, model, f"{prefix}{name}.")
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
