"""What a command shows on a terminal: progress bars, tables and lines with a label."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Self

from rich.console import Console
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

from qk_toolkit.progress_lines import SECONDS, ProgressLines, TaskState
from qk_toolkit.watcher import Watcher

_LEAST_WIDTH = 60  # on a narrower terminal lines wrap, but no digit is cut
_BAR_WIDTH = 20  # all columns of a bar fit on a terminal of 80 characters


class TerminalWatcher(Watcher):
    """Notes and progress go to standard error: a bar on a terminal, lines elsewhere.

    Lines come every `seconds` seconds. If several processes share a task, `rank` is the number of
    this one. Rank 0 shows notes and the progress of all. The others show only what one process does
    alone (`show`), and their rank.
    """

    def __init__(self, rank: int = 0, seconds: float = SECONDS) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=rank > 0)
        self._is_first = rank == 0
        self._shown = ""  # name of the task of `show`
        self._view: _Bar | ProgressLines
        if self._is_first and sys.stderr.isatty():
            self._view = _Bar(self._console)
        else:
            self._view = ProgressLines(seconds, "" if self._is_first else f"rank {rank}: ")

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
            self._view.begin(TaskState(task, has_steps=False))

    def start(self, task: str, total: int | None, done: int = 0, *, rate: str = "") -> None:
        """Show a bar or lines, unless everything is done already."""
        self.stop()
        if self._is_first and total != done:
            self._view.begin(TaskState(task, total, done, rate or task))

    def advance(self, steps: int = 1, **counts: int) -> None:
        """Move the bar, or count for the next line."""
        self._view.advance(steps, counts)

    def show(self, task: str, done: int, total: int, *, in_bytes: bool = False) -> None:
        """Show a bar or lines and set them to `done`; they end when all is done."""
        if task != self._shown:
            self.stop()
            self._shown = task
            self._view.begin(TaskState(task, total, done, in_bytes=in_bytes))
        self._view.set(done, total)
        if done >= total:
            self.stop()

    def stop(self) -> None:
        """End the lines, or the bar, which stays on the screen."""
        self._shown = ""
        self._view.end()


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

    def advance(self, steps: int, counts: Mapping[str, int]) -> None:
        """Move the bar."""
        if self._bar is not None:
            task = self._bar.tasks[0]
            state: TaskState = task.fields["state"]
            state.advance(steps, counts)
            self._bar.update(task.id, advance=steps)

    def set(self, done: int, total: int) -> None:
        """Set the bar."""
        if self._bar is not None:
            self._bar.update(self._bar.tasks[0].id, completed=done, total=total)

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
