"""What of a capture is other now than in its folder, as far as it is known without the model.

A plan records most settings as they were given. Some depend on the model or on the texts, such as
the context or the precision; they are compared only if they are given now, because a setting that
is left out keeps the value with which the capture began. `run_capture` compares the whole plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qk_dump.folder_kinds import UNFINISHED
from qk_dump.manifest import MANIFEST_NAME, plan_difference
from qk_sniffer.capture.folder import plan_in
from qk_sniffer.config import CaptureConfig
from qk_toolkit.files import user_path
from qk_toolkit.model_files import files_hash

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


@dataclass(frozen=True)
class Differences:
    """What is known about the capture in a folder, which may have been removed."""

    plan: Mapping[str, Any] | None  # of the capture; None if none has begun
    complete: bool  # the dump is finished
    setting: str | None  # the first setting that differs, with both values
    model: bool  # the model at this place has other files now


def differences(
    config: CaptureConfig, folder: Path, recorded: Mapping[str, Any] | None = None
) -> Differences:
    """Compare settings with the capture in a folder.

    `recorded` is the plan of a dump that was removed, as its run has it.
    """
    plan = plan_in(folder) or recorded
    complete = (folder / MANIFEST_NAME).is_file() and not (folder / UNFINISHED).exists()
    if plan is None:
        return Differences(None, complete, None, model=False)
    setting = plan_difference(*_compared(config, plan))
    return Differences(plan, complete, setting, other_files(plan, config.model.model_dump()))


def other_files(plan: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Whether a model has other files than the capture with this plan, as far as both are known.

    They are not known for a model on the Hub, and for a GGUF file.
    """
    then, name = _section(plan, "model").get("files"), str(model["name"])
    if then is None or model.get("gguf_file") is not None or name.lower().endswith(".gguf"):
        return False
    now = files_hash(user_path(name))
    return now is not None and now != then


def _compared(
    config: CaptureConfig, plan: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The settings of the plan and those of now that can be compared, by sections."""
    then: dict[str, dict[str, Any]] = {}
    now: dict[str, dict[str, Any]] = {}
    for section, name, value in _settings(config, plan):
        recorded = _section(plan, section)
        then.setdefault(section, {})[name] = recorded.get(name, _ABSENT.get(name))
        now.setdefault(section, {})[name] = value
    if made := config.dataset.made:
        then["dataset"]["synthetic"] = _section(plan, "dataset").get("synthetic")
        now["dataset"]["synthetic"] = made.as_record()
    sampler = config.capture.sampler
    given = {name: getattr(sampler, name) for name in _OF_THE_SAMPLER}
    now["capture"]["sampler"] = {
        "type": sampler.type,
        "seed": sampler.seed,
        **{name: value for name, value in given.items() if value is not None},
    }
    drawn = _section(_section(plan, "capture"), "sampler")
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
    if attention and _section(plan, "model").get("attn_implementation") in _PLAIN_ATTENTION:
        yield "model", "attn_implementation", attention
    if _section(plan, "inference").get("batch_size") != 1:  # some models are run text by text
        yield "inference", "batch_size", config.inference.batch_size


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}
