"""Measures key heads, in this process or in several, and says which ones failed."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_plasticity.fidelity.key_head import Choice, key_head_fidelity
from attention_plasticity.fidelity.rows import read_group
from attention_plasticity.fidelity.settings import FidelityConfig
from attention_plasticity.fidelity.text_lengths import lengths_of_texts
from attention_plasticity.read.texts import DumpTexts
from attention_plasticity.run.plan import Group
from qk_dump.layout import Dump
from qk_dump.rotary_file import with_rotary
from qk_dump.source import open_dump
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ToolkitError

_NO_MEMORY = "out of memory; lower max_workers or max_tokens_per_head"


@dataclass(frozen=True)
class Job:
    """What every process needs to measure key heads; plain values."""

    dump: str
    rotary: str | None
    config: dict[str, Any]
    texts: dict[str, Any]
    near: int
    first_query: int


@dataclass(frozen=True)
class Measured:
    """A key head with its numbers, or the reason why it has none."""

    group: Group
    content: dict[str, Any] | None
    reason: str = ""


def measure_all(job: Job, groups: Sequence[Group], workers: int) -> Generator[Measured]:
    """Measure key heads and yield each as it is finished. The order differs between calls.

    Closing the generator stops the processes.
    """
    if workers == 1 or len(groups) < 2:
        measure = _Measure(job)
        for group in groups:
            yield measure(group)
        return
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(
        min(workers, len(groups)), mp_context=context, initializer=_begin, initargs=(job,)
    )
    try:
        waiting: set[Future[Measured]] = {executor.submit(_measure, group) for group in groups}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    except BrokenProcessPool as error:
        raise ToolkitError(
            "a worker process died, probably out of memory. Finished key heads are kept; run the "
            "same command again with lower max_workers or max_tokens_per_head"
        ) from error
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        executor.shutdown(wait=True)


class _Measure:
    """Measures one key head after the other. The dump is opened once."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._config = FidelityConfig(**job.config).for_reading()
        self._texts = DumpTexts.of_message(job.texts)
        self._dump: Dump = with_rotary(open_dump(job.dump), job.rotary)
        self._lengths = lengths_of_texts(self._dump)

    def __call__(self, group: Group) -> Measured:
        bins = self._texts.bins
        assert bins is not None
        choice = Choice(bins, self._job.near, self._job.first_query)
        try:
            rows = read_group(self._dump, group, self._texts, self._config)
            found = key_head_fidelity(rows, self._texts.groups, self._lengths, choice)
        except ToolkitError as error:
            show_traceback(error)
            return Measured(group, None, str(error))
        except MemoryError:
            return Measured(group, None, _NO_MEMORY)
        except Exception as error:  # a bug of this program: report it and continue
            show_traceback(error)
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"internal error: {error!r} ({Path(where.filename).name}, line {where.lineno})"
            return Measured(group, None, " ".join(reason.split()))
        return Measured(group, found)


_of_process: list[_Measure] = []


def _begin(job: Job) -> None:
    """In a worker process, before its first key head. Ctrl-C is for the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _of_process[:] = [_Measure(job)]


def _measure(group: Group) -> Measured:
    return _of_process[0](group)
