"""What of a capture is other now than in its folder, as far as it is known without the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qk_dump.layout import UNFINISHED
from qk_dump.manifest import MANIFEST_NAME
from qk_sniffer.capture.folder import plan_in
from qk_sniffer.capture.refusals import section_of, setting_difference
from qk_sniffer.config import CaptureConfig
from qk_toolkit.files import user_path
from qk_toolkit.model_files import files_hash


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
    changed = other_files(plan, config.model.model_dump())
    return Differences(plan, complete, setting_difference(config, plan), changed)


def other_files(plan: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Whether a model has other files than the capture with this plan, as far as both are known.

    They are not known for a model on the Hub, and for a GGUF file.
    """
    then, name = section_of(plan, "model").get("files"), str(model["name"])
    if then is None or model.get("gguf_file") is not None or name.lower().endswith(".gguf"):
        return False
    now = files_hash(user_path(name))
    return now is not None and now != then
