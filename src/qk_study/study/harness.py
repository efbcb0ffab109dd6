"""Scores in the results files of lm-evaluation-harness.

Such a file is JSON: `results` has an entry per task, with keys `metric,filter` (`acc,none`) and
`metric_stderr,filter`. Files of earlier versions have no filter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.files import read_json, user_path

_MOST_BYTES = 64 << 20
_NOT_MEASURED = -1.0  # of a length of RULER that was not run
_STDERR = "_stderr"


@dataclass(frozen=True)
class HarnessValue:
    """One score of one model, and where it was found."""

    value: float  # NaN if the length was not measured
    standard_error: float  # NaN if the file has none
    file: str
    task: str
    metric: str  # with its filter, as in the file
    shots: int | None
    model: str  # as the file names it


def read_results(path: str) -> dict[str, Any]:
    """The content of a results file."""
    try:
        content = read_json(user_path(path), most_bytes=_MOST_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: does not exist") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read as JSON: {reason}") from error
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        raise ConfigError(f"{path}: has no results; give a results file of lm-evaluation-harness")
    return content


def tasks_of(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The entries of tasks, then those of groups."""
    groups = content.get("groups")
    both = {**(groups if isinstance(groups, dict) else {}), **content["results"]}
    return {name: entry for name, entry in both.items() if isinstance(entry, Mapping)}


def harness_value(
    path: str, content: Mapping[str, Any], task: str, metric: str | None
) -> HarnessValue | None:
    """The score of a task; None if the file does not have the task."""
    entry = tasks_of(content).get(task)
    if entry is None:
        return None
    where = f"{path}: {task}"
    key = _key(entry, metric, where)
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{where}: {key}: expected a finite number, got {in_short(value)}")
    name, comma, kept = key.partition(",")
    unmeasured = name.isdigit() and value == _NOT_MEASURED
    error = entry.get(f"{name}{_STDERR}{comma}{kept}")
    known = isinstance(error, int | float) and not isinstance(error, bool) and math.isfinite(error)
    shots = content.get("n-shot")
    number = shots.get(task) if isinstance(shots, Mapping) else None
    return HarnessValue(
        math.nan if unmeasured else float(value),
        float(error) if known and not unmeasured else math.nan,  # type: ignore[arg-type]
        path,
        task,
        key,
        number if type(number) is int else None,
        clean(str(content.get("model_name") or "")),
    )


def _key(entry: Mapping[str, Any], metric: str | None, where: str) -> str:
    """The key of a metric. Without a metric, the only one of the task."""
    keys = [key for key, value in entry.items() if _is_metric(key, value)]
    found = keys if metric is None else [key for key in keys if key == metric]
    if not found:
        found = [key for key in keys if key.partition(",")[0] == metric]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(keys) or "none"
    what = "no metric is chosen" if metric is None else f"{metric}: is not exactly one metric"
    raise ConfigError(f"{where}: {what}; its metrics are: {listed}. Choose one as metric")


def _is_metric(key: str, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and not key.partition(",")[0].endswith(_STDERR)
