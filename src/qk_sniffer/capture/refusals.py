"""Refusals of a folder that holds something else than the capture to begin or to continue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qk_dump.layout import refuse_other_output
from qk_dump.manifest import plan_difference
from qk_sniffer.config import CaptureConfig
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import resolved, user_path

REMEDY = "choose another output.data_root, or add --overwrite to {}."

_SETTINGS = {
    "dataset": ("path", "name", "revision", "split", "text_column", "id_column", "max_samples"),
    "model": ("name", "revision", "gguf_file"),
    "tokenizer": ("name", "revision", "max_length", "add_special_tokens"),
    "capture": ("layers", "heads", "capture_queries", "capture_keys", "attention", "tokens"),
}
"""Settings that a plan records as they are given. The others depend on the model."""


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
    now = config.model_dump(include={*_SETTINGS})
    then: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for section, names in _SETTINGS.items():
        recorded = begun.get(section)
        for name in names:
            value = now[section].get(name)
            if isinstance(recorded, Mapping) and name in recorded and value is not None:
                then.setdefault(section, {})[name] = recorded[name]
                given.setdefault(section, {})[name] = value
    refuse_difference(folder, plan_difference(then, given))
