"""Refusals of a folder that holds something else than the capture to begin or to continue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qk_dump.layout import refuse_other_output
from qk_dump.manifest import plan_difference
from qk_sniffer.config import CaptureConfig
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import resolved, user_path

REMEDY = "choose another output.data_root, or add --overwrite to {}."

_AS_GIVEN = {
    "dataset": (
        *("path", "name", "revision", "split", "text_column", "id_column"),
        *("max_samples", "spread_samples"),
    ),
    "model": (
        *("name", "revision", "gguf_file", "config_overrides"),
        *("random_weights", "random_seed"),
    ),
    "tokenizer": ("name", "revision", "add_special_tokens"),
    "capture": (
        *("layers", "heads", "head_sampling", "full_attention_only", "capture_pre_rope"),
        *("capture_queries", "capture_keys", "attention", "tokens", "attended_queries"),
    ),
    "output": ("vector_dtype",),
}
_IF_GIVEN = {
    "tokenizer": ("max_length",),
    "capture": ("min_bucket_size", "attended_keys"),
}
_PLAIN_ATTENTION = ("eager", "sdpa")  # others are recorded by the name of their kernel
_OF_THE_SAMPLER = ("base_rate", "key_base_rate")
_ABSENT = {"spread_samples": None, "random_weights": False, "random_seed": 0}
"""Settings that a plan leaves out if they have these values."""


def refuse_used_folder(folder: Path, texts: str) -> None:
    """Refuse the folder of an analysis, of a study or of the texts as the folder of a dump."""
    refuse_other_output(folder, "dump", "output.data_root")
    if resolved(folder) == resolved(user_path(texts)):
        raise ConfigError(
            f"output.data_root: {folder}: is also dataset.path; choose another folder"
        )


def refuse_difference(folder: Path, difference: str | None) -> None:
    """Refuse a folder that holds a capture with another plan; None: the plans are equal."""
    if difference is not None:
        raise ConfigError(
            f"{folder}: holds a capture that differs in {difference}; "
            f"{REMEDY.format('start again')}"
        )


def refuse_other_settings(folder: Path, config: CaptureConfig, begun: Mapping[str, Any]) -> None:
    """Refuse other settings than those of a plan, as far as they are known without the model.

    The whole plan is compared later. This comparison comes before the model is loaded, and before
    notes about the choices of the earlier plan.
    """
    refuse_difference(folder, setting_difference(config, begun))


def setting_difference(config: CaptureConfig, plan: Mapping[str, Any]) -> str | None:
    """The first setting that differs from a plan, with both values.

    A plan records most settings as they were given. Some depend on the model or on the texts, such
    as the context or the precision; they are compared only if they are given now, because a setting
    that is left out keeps the value with which the capture began.
    """
    return plan_difference(*_compared(config, plan))


def _compared(
    config: CaptureConfig, plan: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The settings of the plan and those of now that can be compared, by sections."""
    then: dict[str, dict[str, Any]] = {}
    now: dict[str, dict[str, Any]] = {}
    for section, name, value in _settings(config, plan):
        recorded = section_of(plan, section)
        then.setdefault(section, {})[name] = recorded.get(name, _ABSENT.get(name))
        now.setdefault(section, {})[name] = value
    if made := config.dataset.made:
        then["dataset"]["synthetic"] = section_of(plan, "dataset").get("synthetic")
        now["dataset"]["synthetic"] = made.as_record()
    sampler = config.capture.sampler
    given = {name: getattr(sampler, name) for name in _OF_THE_SAMPLER}
    now["capture"]["sampler"] = {
        "type": sampler.type,
        "seed": sampler.seed,
        **{name: value for name, value in given.items() if value is not None},
    }
    drawn = section_of(section_of(plan, "capture"), "sampler")
    then["capture"]["sampler"] = {name: drawn.get(name) for name in now["capture"]["sampler"]}
    return then, now


def _settings(config: CaptureConfig, plan: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Section, name and value of the settings that are compared one by one."""
    values = config.model_dump(include={*_AS_GIVEN})
    for section, names in _AS_GIVEN.items():
        yield from ((section, name, values[section][name]) for name in names)
    for section, names in _IF_GIVEN.items():
        given = ((name, values[section][name]) for name in names)
        yield from ((section, name, value) for name, value in given if value is not None)
    if config.model.dtype != "auto":
        yield "model", "dtype", config.model.dtype
    attention = config.model.attn_implementation
    if attention and section_of(plan, "model").get("attn_implementation") in _PLAIN_ATTENTION:
        yield "model", "attn_implementation", attention
    if section_of(plan, "inference").get("batch_size") != 1:  # some models are run text by text
        yield "inference", "batch_size", config.inference.batch_size


def section_of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a plan; empty if the plan does not have it."""
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}
