"""What a command shows on a terminal: progress bars (lines in a log file), tables and labels."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from qk_toolkit.formatting import duration
from qk_toolkit.watcher import Watcher

_LEAST_WIDTH = 60  # on a narrower terminal lines wrap, but no digit is cut
_BAR_WIDTH = 20  # all columns of a bar fit on a terminal of 80 characters
SECONDS = 30.0  # between two lines


class TerminalWatcher(Watcher):
    """Notes and progress go to standard error: a bar on a terminal, lines elsewhere.

    Lines come every `seconds` seconds. If several processes share a task, `rank` is the number of
    this one. Rank 0 shows notes and the progress of all. The others show only what one process does
    alone (`show`), and their rank.
    """

    def __init__(self, rank: int = 0, seconds: float = SECONDS) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=rank > 0)
        self._is_first = rank == 0
        self._showing = threading.Lock()
        self._shown = ""  # name of the task of `show`
        self._state: TaskState | None = None
        self._view: _Bar | _Lines
        if self._is_first and sys.stderr.isatty():
            self._view = _Bar(self._console)
        else:
            self._view = _Lines(seconds, "" if self._is_first else f"rank {rank}: ")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def note(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(text, markup=False)

    def busy(self, task: str) -> None:
        """Show lines; on a terminal, libraries show their own bars while they load files."""
        self.stop()
        if self._is_first:
            self._begin(TaskState(task, has_steps=False))

    def start(self, task: str, total: int | None, done: int = 0, *, rate: str = "") -> None:
        """Show a bar or lines, unless everything is done already."""
        self.stop()
        if self._is_first and total != done:
            self._begin(TaskState(task, total, done, rate or task))

    def advance(self, steps: int = 1, **counts: int) -> None:
        """Move the bar, or count for the next line."""
        if self._state is not None:
            self._state.advance(steps, counts)
            self._view.update(self._state)

    def show(self, task: str, done: int, total: int, *, in_bytes: bool = False) -> None:
        """Show a bar or lines and set them to `done`; they end when all is done.

        Threads that copy files side by side call it.
        """
        with self._showing:
            if task != self._shown or self._state is None:
                self.stop()
                self._shown = task
                self._begin(TaskState(task, total, done, in_bytes=in_bytes))
            assert self._state is not None
            self._state.set(done, total)
            self._view.update(self._state)
            if done >= total:
                self.stop()

    def stop(self) -> None:
        """End the lines, or the bar, which stays on the screen."""
        self._shown = ""
        self._state = None
        self._view.end()

    def _begin(self, state: TaskState) -> None:
        self._state = state
        self._view.begin(state)


class _Bar:
    """A progress bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None

    def begin(self, state: TaskState) -> None:
        """Show the bar of a task that has steps."""
        if not state.has_steps:
            return
        counter = DownloadColumn() if state.in_bytes else MofNCompleteColumn()
        columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(_BAR_WIDTH)]
        columns += [counter, TimeRemainingColumn()]
        if state.rate:
            columns[3:] = [_Speed(), _Counts(), TimeRemainingColumn(), TextColumn("left")]
        self._bar = Progress(*columns, console=self._console)
        self._bar.start()
        self._bar.add_task(state.name, total=state.total, completed=state.done, state=state)

    def update(self, state: TaskState) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._bar.tasks[0].id, completed=state.done, total=state.total)

    def end(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class _Speed(ProgressColumn):
    """Steps or counts per second, without the steps that an earlier process finished."""

    def render(self, task: Task) -> Text:
        state: TaskState = task.fields["state"]
        number = state.new_steps if state.rate == state.name else state.counts[state.rate]
        if not number or state.elapsed <= 0:
            return Text(f"– {state.rate}/s")
        speed = number / state.elapsed
        return Text(
            f"{speed:,.0f} {state.rate}/s" if speed >= 100 else f"{speed:.1f} {state.rate}/s"
        )


class _Counts(ProgressColumn):
    """Counts other than the one whose speed is shown, such as `1,024 rows` or `2 failed`."""

    def render(self, task: Task) -> Text:
        state: TaskState = task.fields["state"]
        counts = {name: n for name, n in list(state.counts.items()) if n and name != state.rate}
        style = "red" if "failed" in counts else ""
        return Text(", ".join(f"{number:,} {name}" for name, number in counts.items()), style)


class _Console(Console):
    """A console that lets a broken pipe reach the command, which then ends quietly."""

    def on_broken_pipe(self) -> None:
        raise


def command_console(*, wrap: bool = True) -> Console:
    """The console on which a command prints its results.

    It is wide enough for tables. Without `wrap`, lines in a file or a pipe have any length.
    """
    console = _Console(highlight=False, markup=False, soft_wrap=wrap)
    console.width = max(console.width, _LEAST_WIDTH)
    if not wrap and not console.is_terminal:
        console.width = 10_000
    return console


def print_line(console: Console, label: str, text: str) -> None:
    """Print a label in bold and a text."""
    console.print(Text.assemble((f"{label:<13}", "bold"), text))


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
        counts = [f"{number:,} {name}" for name, number in list(self.counts.items()) if number]
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


class _Lines:
    """Prints the state of a task to standard error, one line every `seconds` seconds.

    A thread prints the lines, so that they come during a long step too. The first line comes
    `seconds` seconds after the first task began: short commands print none.
    """

    def __init__(self, seconds: float, label: str) -> None:
        self._seconds = seconds
        self._label = label
        self._next: float | None = None  # time of the next line, whichever task it is about
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, state: TaskState) -> None:
        """A task begins; an earlier one has ended."""
        soon = time.monotonic() + self._seconds
        self._next = soon if self._next is None else min(self._next, soon)
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._print, args=[state], name="progress", daemon=True
        )
        self._thread.start()

    def update(self, state: TaskState) -> None:
        """The next line has the state."""

    def end(self) -> None:
        """The task has ended."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def _print(self, state: TaskState) -> None:
        while not self._ended.wait(max(0.0, (self._next or 0.0) - time.monotonic())):
            self._next = time.monotonic() + self._seconds
            try:  # in one call, so that lines of several processes stay whole
                sys.stderr.write(f"{self._label}{state.line()}\n")
                sys.stderr.flush()
            except (OSError, ValueError):  # nobody reads standard error, or it is closed
                return
