"""Work for an engine: groups of heads of one or several runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from qk_toolkit.files import user_path
from qk_toolkit.urls import is_remote

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.measure.result import Failure, HeadResult
    from attention_plasticity.read.texts import DumpTexts
    from attention_plasticity.run.plan import Group
    from attention_plasticity.run.worker import WorkerLog
    from qk_dump.remote import DumpPath


@dataclass(frozen=True)
class Job:
    """A run as its workers see it: the dump that they read, its texts, the settings, and a log."""

    dump: DumpPath
    texts: DumpTexts
    config: RunnerConfig
    log: WorkerLog
    number: int = field(default_factory=count().__next__)  # no other job of this process has it
    cancelled: Event = field(default_factory=Event, compare=False)  # its heads are not needed

    def as_message(self) -> dict[str, object]:
        """The job as values for JSON. Workers can have another current folder."""
        path = self.dump.absolute() if isinstance(self.dump, Path) else self.dump
        config = self.config.model_dump()
        for name in ("rotary", "repeated"):
            if config[name] is not None and not is_remote(config[name]):
                config[name] = str(user_path(config[name]).absolute())
        return {"dump": str(path), "texts": self.texts.as_message(), "config": config}


class Task(NamedTuple):
    """A group of heads of a job."""

    job: Job
    group: Group


class TaskQueue:
    """Tasks that wait. They are taken from their source one by one, as preparing one takes time.

    An engine prepares further tasks when it has nothing else to do. Tasks that are computed again,
    after the death of a worker, come first. While `is_open` is set, tasks can be added, and
    an engine asks for them with `OutOfTasks`. Tasks of a cancelled job are left out.
    """

    def __init__(self, tasks: Iterable[Task] = (), *, is_open: bool = False) -> None:
        self._source: Iterator[Task] = iter(tasks)
        self._waiting: deque[Task] = deque()
        self.is_open = is_open

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks after all others."""
        self._source = chain(self._source, tasks)

    def __bool__(self) -> bool:
        """Whether there is a task. It is prepared if none waits."""
        while self._waiting and self._waiting[0].job.cancelled.is_set():
            self._waiting.popleft()
        return bool(self._waiting) or self.prepare()

    def prepare(self) -> bool:
        """Prepare the next task. Returns whether there was one."""
        for task in self._source:
            if not task.job.cancelled.is_set():
                self._waiting.append(task)
                return True
        return False

    def take(self) -> Task:
        """The next task of a queue that is not empty."""
        if not self:
            raise IndexError("no task waits")
        return self._waiting.popleft()

    def put_back(self, tasks: Iterable[Task]) -> None:
        """Add tasks that are computed again, as the next ones."""
        self._waiting.extendleft(tasks)


class OutOfTasks:
    """An engine yields this when no task waits and more tasks can be added to its queue."""


class Computed(NamedTuple):
    """A computed head of a job."""

    job: Job
    outcome: HeadResult | Failure
