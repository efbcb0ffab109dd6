"""What of an analysis is other now than in its folder. The dump is not read for this."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attention_plasticity.config import ANALYSIS_FIELDS, RunnerConfig
from attention_plasticity.run.records import FOLDER
from attention_plasticity.run.run_json import recorded_config
from attention_plasticity.tables.run_info import RUN_FILE, read_run_info, sha256_of
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_json, same_place

_PLACES = ("dataset_local_root", "rotary", "repeated")
_COMPARED = (*ANALYSIS_FIELDS, "model_dir", *_PLACES)


def differences(config: RunnerConfig, folder: Path) -> dict[str, tuple[Any, Any]]:
    """The settings that decide the results of heads and are others now: then and now.

    Without run.json they are those of the latest records. A record that cannot be read says
    nothing: the analysis then compares its records.
    """
    now = json.loads(json.dumps(config.model_dump(include={*_COMPARED})))
    then = _recorded(folder)
    return {
        name: (then[name], now[name])
        for name in _COMPARED
        if name in then and not _equal(name, then[name], now[name])
    }


def is_finished(config: RunnerConfig, folder: Path) -> bool:
    """Whether the run with these settings has all its heads, and its tables as they were written.

    The dump may have changed since, or may have been removed.
    """
    try:
        info = read_run_info(folder / RUN_FILE)
    except (FileNotFoundError, ConfigError):
        return False
    if not info.get("tables") or info.get("failures"):
        return False
    if info.get("config") != json.loads(json.dumps(recorded_config(config))):
        return False
    if any(_is_chosen(config, *head) for head in info.get("not_analysed") or ()):
        return False
    hashes = info.get("sha256") or {}
    return all(
        sha256_of(folder / name) == hashes.get(kind) for kind, name in info["tables"].items()
    )


def _is_chosen(config: RunnerConfig, layer: int, q_head: int) -> bool:
    """Whether a query head is one of those that the settings choose."""
    chosen = (config.layers, layer), (config.heads, q_head)
    return all(numbers is None or one in numbers for numbers, one in chosen)


def _recorded(folder: Path) -> dict[str, Any]:
    """The settings in run.json, or those of the records that were begun last."""
    try:
        if (folder / RUN_FILE).exists():
            return dict(read_run_info(folder / RUN_FILE).get("config") or {})
        begun = (folder / FOLDER).glob("*/settings.json")
        latest = max(begun, key=lambda path: path.stat().st_mtime_ns, default=None)
        found = {} if latest is None else dict(read_json(latest))
    except (OSError, ValueError, TypeError, ConfigError):
        return {}
    return {name: found[name] for name in ANALYSIS_FIELDS if name in found}


def _equal(name: str, then: Any, now: Any) -> bool:
    """Whether two values are the same; a path may be written in several ways."""
    if name in _PLACES and isinstance(then, str) and isinstance(now, str):
        return same_place(then, now)
    return bool(then == now)
