"""Where the benchmark scores of a study come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.settings import validated


class HarnessScore(BaseModel):
    """A score in results files of lm-evaluation-harness."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str = Field(min_length=1, description="task or group in the results file")
    metric: str | None = Field(
        default=None,
        min_length=1,
        description="metric, with or without its filter: acc or acc,none",
    )


@dataclass(frozen=True)
class ScoreSource:
    """One entry of `scores`."""

    name: str | None  # of the score; None: every column of the file is a score
    file: str | None = None  # a CSV file
    task: str | None = None  # of lm-evaluation-harness
    metric: str | None = None


def score_sources(given: Any, file: str) -> tuple[ScoreSource, ...]:
    """The entries of `scores`: one CSV file, or a mapping from names to CSV files and tasks."""
    where = f"{file}: scores"
    if given is None:
        return ()
    if isinstance(given, str) and given:
        return (ScoreSource(None, given),)
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            f"{where}: expected a CSV file, or {{NAME: FILE.csv}}, or {{NAME: {{task: TASK}}}}, "
            f"got {in_short(given)}"
        )
    return tuple(_source(str(name), value, where) for name, value in given.items())


def _source(name: str, value: Any, where: str) -> ScoreSource:
    if not clean(name) or name in ("label", "model"):
        raise ConfigError(f"{where}: {in_short(name)}: is no name of a score; choose another")
    if isinstance(value, str) and value:
        return ScoreSource(name, value)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where}: {name}: expected a CSV file or {{task: TASK}}, got {in_short(value)}"
        )
    found = validated(HarnessScore, value, lambda field: f"{where}: {name}: {field}")
    return ScoreSource(name, task=found.task, metric=found.metric)
