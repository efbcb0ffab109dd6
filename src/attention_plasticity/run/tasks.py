"""Work for an engine: groups of heads of one or several runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.results import Failure, HeadResult
    from attention_plasticity.run.plan import Group
    from attention_plasticity.run.worker_log import WorkerLog


@dataclass(frozen=True)
class Job:
    """A run as its workers see it: the dump that they read, the settings, and a log."""

    dump: Path
    config: RunnerConfig
    log: WorkerLog

    def as_message(self) -> dict[str, object]:
        """The job as values for JSON."""
        return {"dump": str(self.dump), "config": self.config.model_dump()}


class Task(NamedTuple):
    """A group of heads of a job."""

    job: Job
    group: Group


class Computed(NamedTuple):
    """A computed head of a job."""

    job: Job
    outcome: HeadResult | Failure
