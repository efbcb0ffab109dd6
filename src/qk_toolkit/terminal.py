"""What a command shows on a terminal: progress bars, tables and lines with a label."""

from __future__ import annotations

import sys
import time
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

from qk_toolkit.watcher import Watcher

_LEAST_WIDTH = 60  # on a narrower terminal lines wrap, but no digit is cut
_BAR_WIDTH = 20  # all columns of a bar fit on a terminal of 80 characters


class TerminalWatcher(Watcher):
    """Notes go to standard error. Progress bars appear only when standard error is a terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
        self._has_bars = sys.stderr.isatty() and not quiet
        self._bar: Progress | None = None
        self._shown = ""  # name of the task in the bar

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def note(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(text, markup=False)

    def start(self, task: str, total: int | None, done: int = 0, *, rate: str = "") -> None:
        """Show a bar, unless everything is done already."""
        if total != done:
            self._open(task, _Speed(), _Counts(), TimeRemainingColumn(), TextColumn("left"))
            if self._bar is not None:
                self._bar.add_task(
                    task,
                    total=total,
                    completed=done,
                    kept=done,
                    rate=rate or task,
                    counts={},
                    began=time.monotonic(),
                )

    def advance(self, steps: int = 1, **counts: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            task = self._bar.tasks[0]
            for name, number in counts.items():
                task.fields["counts"][name] = task.fields["counts"].get(name, 0) + number
            self._bar.update(task.id, advance=steps)

    def show(self, task: str, done: int, total: int, *, in_bytes: bool = False) -> None:
        """Show a bar and set it to `done`; it ends when all is done."""
        if task != self._shown:
            self._open(task, TimeRemainingColumn(), in_bytes=in_bytes)
            if self._bar is not None:
                self._bar.add_task(task, total=total)
        if self._bar is not None:
            self._bar.update(self._bar.tasks[0].id, completed=done, total=total)
        if done >= total:
            self.stop()

    def stop(self) -> None:
        """End the bar. It stays on the screen."""
        self._shown = ""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self, task: str, *columns: ProgressColumn, in_bytes: bool = False) -> None:
        self.stop()
        self._shown = task
        if self._has_bars:
            counter = DownloadColumn() if in_bytes else MofNCompleteColumn()
            first = (TextColumn("{task.description}"), BarColumn(_BAR_WIDTH), counter)
            self._bar = Progress(*first, *columns, console=self._console)
            self._bar.start()


class _Speed(ProgressColumn):
    """Steps or counts per second, without the steps that an earlier process finished."""

    def render(self, task: Task) -> Text:
        name, counts = task.fields["rate"], task.fields["counts"]
        number = counts.get(name, 0) if name != task.description else _new_steps(task)
        elapsed = time.monotonic() - task.fields["began"]
        if not number or elapsed <= 0:
            return Text(f"– {name}/s")
        speed = number / elapsed
        return Text(f"{speed:,.0f} {name}/s" if speed >= 100 else f"{speed:.1f} {name}/s")


def _new_steps(task: Task) -> float:
    return float(task.completed - task.fields["kept"])


class _Counts(ProgressColumn):
    """Counts other than the one whose speed is shown, such as `1,024 rows` or `2 failed`."""

    def render(self, task: Task) -> Text:
        counts = {
            name: number
            for name, number in task.fields["counts"].items()
            if number and name != task.fields["rate"]
        }
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
