"""A whole run: plan, resume, compute, record, write.

A head is recorded as soon as it is finished. The tables have the same bytes for any number of
workers and interruptions. Tables of another run are never mixed with those of this run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from attention_plasticity.config import RunnerConfig
from attention_plasticity.measure.result import Failure
from attention_plasticity.run.engines import make_engine, require_engine
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.local_engine import EarlyWorkers
from attention_plasticity.run.open_run import HeadsInProgress, OpenRun, compute, open_run
from attention_plasticity.run.tasks import Computed, OutOfTasks, TaskQueue
from qk_dump.layout import Dump
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import HubError, OutputError, StoreError, ToolkitError
from qk_toolkit.watcher import Watcher


def run_analysis(
    config: RunnerConfig,
    watcher: Watcher | None = None,
    dump: Dump | None = None,
    workers: EarlyWorkers | None = None,
) -> Outcome:
    """Analyse every head of the dump (the config's, unless one is given) and write the tables.

    `workers` were started before, to import their modules meanwhile. Raises a `ToolkitError` when
    nothing can be done; heads that fail are listed in the result.
    """
    watcher = watcher or Watcher()
    require_engine(config)
    with open_run(config, watcher, dump) as run:
        heads = run.heads
        watcher.start("heads", len(heads.triples), len(heads.done))
        compute(heads, workers, watcher)
        return run.finish(watcher)


@dataclass(frozen=True)
class Refused:
    """A run that could not begin, or whose files could not be written or sent, and the reason."""

    config: RunnerConfig
    reason: ToolkitError


def run_analyses(
    configs: Sequence[RunnerConfig],
    watcher: Watcher | None = None,
    workers: EarlyWorkers | None = None,
) -> Iterator[Outcome | Refused]:
    """Analyse several dumps with one set of workers, and yield each run when it is finished.

    A run is opened, and its dump is fetched, when no head of the runs before waits. Workers then do
    not wait for the last heads of these runs. A run that cannot begin does not stop the others, nor
    does a full disk or a failed upload.
    """
    watcher = watcher or Watcher()
    require_engine(configs[0])
    runs = _Runs(configs, watcher)
    engine = make_engine(runs.tasks, configs[0], workers, watcher.note)
    try:
        with closing(runs), closing(engine):
            for found in engine:
                if isinstance(found, OutOfTasks):
                    runs.open_next()
                else:
                    runs.add(found)
                yield from runs.take_ended()
            yield from runs.take_ended()
    finally:
        watcher.stop()


class _Runs:
    """Runs that are opened one after another, and closed when they are finished."""

    def __init__(self, configs: Sequence[RunnerConfig], watcher: Watcher) -> None:
        self.tasks = TaskQueue(is_open=True)
        self._configs = deque(configs)
        self._watcher = watcher
        self._open: dict[int, tuple[OpenRun, ExitStack]] = {}  # by the number of their job
        self._ended: list[Outcome | Refused] = []
        self._finished_heads = 0  # of closed runs

    def open_next(self) -> None:
        """Open the next run and add its heads to the tasks. Without one, close the queue."""
        if not self._configs:
            self.tasks.is_open = False
            return
        config = self._configs.popleft()
        with ExitStack() as stack:
            try:
                run = stack.enter_context(open_run(config, self._watcher))
            except ToolkitError as error:
                show_traceback(error)
                self._ended.append(Refused(config, error))
                return
            self._open[run.heads.job.number] = run, stack.pop_all()
        if not run.heads.remaining:
            self._finish(run.heads)
            return
        heads = [one.heads for one, _ in self._open.values()]
        total = self._finished_heads + sum(len(one.triples) for one in heads)
        self._watcher.start("heads", total, total - sum(one.remaining for one in heads))
        self.tasks.add(run.heads.tasks())

    def add(self, computed: Computed) -> None:
        """Record a computed head. Its run is finished with the last head.

        If the head cannot be recorded, the run is closed, and its other heads are not computed.
        """
        if computed.job.cancelled.is_set():
            return
        heads = self._open[computed.job.number][0].heads
        try:
            heads.add(computed.outcome)
        except OutputError as error:
            show_traceback(error)
            computed.job.cancelled.set()
            self._take(heads)[1].close()
            self._ended.append(Refused(computed.job.config, error))
            return
        self._watcher.advance(failed=int(isinstance(computed.outcome, Failure)))
        if not heads.remaining:
            self._finish(heads)

    def _finish(self, heads: HeadsInProgress) -> None:
        """Write the tables of a run whose heads are all computed, and close it."""
        run, stack = self._take(heads)
        with stack:
            try:
                self._ended.append(run.finish(self._watcher))
            except (HubError, OutputError, StoreError) as error:
                show_traceback(error)
                self._ended.append(Refused(heads.job.config, error))

    def _take(self, heads: HeadsInProgress) -> tuple[OpenRun, ExitStack]:
        """An open run, which is no longer among the open ones."""
        self._finished_heads += len(heads.triples)
        return self._open.pop(heads.job.number)

    def take_ended(self) -> list[Outcome | Refused]:
        """Runs that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Close the runs that are still open."""
        for _, stack in self._open.values():
            stack.close()
