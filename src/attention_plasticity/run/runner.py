"""A whole run: plan, resume, compute, record, write.

A head is recorded as soon as it is finished. The tables have the same bytes for any number of
workers and interruptions. Tables of another run are never mixed with those of this run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import takewhile

from attention_plasticity.config import RunnerConfig
from attention_plasticity.run.engines import make_engine, require_engine
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.local_engine import EarlyWorkers
from attention_plasticity.run.open_run import HeadsInProgress, OpenRun, compute, open_run
from attention_plasticity.run.tasks import SlowToPrepare, Task
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
        engine = make_engine(heads.tasks(), config, workers, watcher.note)
        for _ in compute(engine, {heads.job.number: heads}, watcher):
            pass  # the heads are recorded
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

    A run is opened, and its dump is fetched, when the heads of the run before are used up. Workers
    then do not wait for the last heads of that run. A run that cannot begin does not stop the
    others, nor does a full disk or a failed upload.
    """
    watcher = watcher or Watcher()
    require_engine(configs[0])
    runs = _Runs(configs, watcher)
    with closing(runs):
        engine = make_engine(runs.tasks(), configs[0], workers, watcher.note)
        for heads in compute(engine, runs.heads, watcher, runs.cancel):
            if not heads.remaining:
                runs.finish(heads)
            yield from runs.take_ended()
        yield from runs.take_ended()


class _Runs:
    """Runs that are opened one after another, and closed when they are finished."""

    def __init__(self, configs: Sequence[RunnerConfig], watcher: Watcher) -> None:
        self.heads: dict[int, HeadsInProgress] = {}  # of the open runs, by the number of their job
        self._configs = configs
        self._watcher = watcher
        self._open: dict[int, tuple[OpenRun, ExitStack]] = {}
        self._ended: list[Outcome | Refused] = []
        self._finished_heads = 0  # of closed runs

    def tasks(self) -> Iterator[Task | SlowToPrepare]:
        """The heads of all runs as work for an engine. Each run is opened after a mark."""
        for config in self._configs:
            yield SlowToPrepare()
            heads = self._opened(config)
            if heads is not None:
                yield from takewhile(lambda task: not task.job.cancelled.is_set(), heads.tasks())

    def _opened(self, config: RunnerConfig) -> HeadsInProgress | None:
        """The heads of a run that begins; None if it cannot begin or has nothing to compute."""
        with ExitStack() as stack:
            try:
                run = stack.enter_context(open_run(config, self._watcher))
            except ToolkitError as error:
                show_traceback(error)
                self._ended.append(Refused(config, error))
                return None
            heads = run.heads
            self.heads[heads.job.number] = heads
            self._open[heads.job.number] = run, stack.pop_all()
        if not heads.remaining:
            self.finish(heads)
            return None
        left = sum(one.remaining for one in self.heads.values())
        total = self._finished_heads + sum(len(one.triples) for one in self.heads.values())
        self._watcher.start("heads", total, total - left)
        return heads

    def finish(self, heads: HeadsInProgress) -> None:
        """Write the tables of a run whose heads are all computed, and close it."""
        run, stack = self._take(heads)
        with stack:
            try:
                self._ended.append(run.finish(self._watcher))
            except (HubError, OutputError, StoreError) as error:
                show_traceback(error)
                self._ended.append(Refused(heads.job.config, error))

    def cancel(self, heads: HeadsInProgress, error: ToolkitError) -> None:
        """Close a run of which a head could not be recorded. Its other heads are not computed."""
        show_traceback(error)
        heads.job.cancelled.set()
        _, stack = self._take(heads)
        stack.close()
        self._ended.append(Refused(heads.job.config, error))

    def _take(self, heads: HeadsInProgress) -> tuple[OpenRun, ExitStack]:
        """An open run, which is no longer among the open ones."""
        del self.heads[heads.job.number]
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
