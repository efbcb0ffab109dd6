"""The progress of a long task as lines, for a log file or a pipe where no bar can be shown."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.filesize import decimal

from qk_toolkit.formatting import duration

SECONDS = 30.0  # between two lines
_LONGEST_WAIT = 8  # times `SECONDS`, between two lines while no step ends


@dataclass
class TaskState:
    """The state of a long task.

    `done` of `total` steps are finished, `kept` of them by an earlier process. `rate` names the
    count whose speed is of interest. A task that has no steps is only waited for.
    """

    name: str
    total: int | None = None
    done: int = 0
    rate: str = ""
    in_bytes: bool = False
    has_steps: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    kept: int = field(init=False)
    began: float = field(init=False)
    last_step: float = field(init=False)  # time of the last step that ended

    def __post_init__(self) -> None:
        self.kept = self.done
        self.began = self.last_step = time.monotonic()

    def advance(self, steps: int, counts: Mapping[str, int]) -> None:
        """Some steps are finished."""
        self.set(self.done + steps, self.total)
        self.counts.update(counts)

    def set(self, done: int, total: int | None) -> None:
        """`done` of `total` steps are finished."""
        if done != self.done:
            self.last_step = time.monotonic()
        self.done, self.total = done, total

    @property
    def new_steps(self) -> int:
        """Steps that this process has seen."""
        return self.done - self.kept

    @property
    def elapsed(self) -> float:
        """Seconds since the task began."""
        return time.monotonic() - self.began

    def line(self) -> str:
        """`texts: 3 of 40 done, 12,000 tokens, 5 min left`."""
        if not self.has_steps:
            return f"{self.name}: {duration(self.elapsed)} so far"
        done = self._number(self.done)
        if self.total is not None:
            done = f"{self._number(min(self.done, self.total))} of {self._number(self.total)}"
        counts = [f"{number:,} {name}" for name, number in self.counts.items() if number]
        return ", ".join([f"{self.name}: {done} done", *counts, *self._left()])

    def _number(self, number: int) -> str:
        return decimal(number) if self.in_bytes else f"{number:,}"

    def _left(self) -> list[str]:
        """The time left, from the mean time of a step; before the first step, the time so far.

        During a step the time left decreases. It stays the same if the step takes longer than the
        others did.
        """
        if self.new_steps <= 0:
            return [f"{duration(self.elapsed)} so far"]
        if self.total is None:
            return []
        left = max(0, self.total - self.done)
        step = (self.last_step - self.began) / self.new_steps  # seconds
        in_step = min(step, time.monotonic() - self.last_step)
        return [f"{duration(max(0.0, step * left - in_step))} left"]


def wait_factor(factor: int, *, moved: bool) -> int:
    """How many times the usual time passes before the next line, from that before the last one."""
    return 1 if moved else min(2 * factor, _LONGEST_WAIT)


class ProgressLines:
    """Prints the state of a task to standard error, one line every `seconds` seconds.

    A thread prints the lines, so that they come during a long step too. The first line comes
    `seconds` seconds after the first task began: short commands print none. While no step ends,
    the time to the next line doubles.
    """

    def __init__(self, seconds: float, label: str = "") -> None:
        self._seconds = seconds
        self._label = label
        self._lock = threading.Lock()
        self._state: TaskState | None = None
        self._next: float | None = None  # time of the next line, whichever task it is about
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, state: TaskState) -> None:
        """A task begins; an earlier one has ended."""
        self.end()
        with self._lock:
            self._state = state
        soon = time.monotonic() + self._seconds
        self._next = soon if self._next is None else min(self._next, soon)
        self._ended.clear()
        self._thread = threading.Thread(target=self._print, name="progress", daemon=True)
        self._thread.start()

    def advance(self, steps: int, counts: Mapping[str, int]) -> None:
        """Some steps are finished."""
        with self._lock:
            if self._state is not None:
                self._state.advance(steps, counts)

    def set(self, done: int, total: int) -> None:
        """`done` of `total` steps are finished."""
        with self._lock:
            if self._state is not None:
                self._state.set(done, total)

    def end(self) -> None:
        """The task has ended."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        with self._lock:
            self._state = None

    def _print(self) -> None:
        done, factor = -1, 1  # steps at the last line, and how much longer the wait is now
        while not self._ended.wait(max(0.0, (self._next or 0.0) - time.monotonic())):
            with self._lock:
                if self._state is None:
                    return
                line = f"{self._label}{self._state.line()}\n"
                factor = wait_factor(factor, moved=self._state.done != done)
                done = self._state.done
            self._next = time.monotonic() + factor * self._seconds
            try:
                sys.stderr.write(line)  # in one call, so that lines of several processes stay whole
                sys.stderr.flush()
            except (OSError, ValueError):  # nobody reads standard error, or it is closed
                return
