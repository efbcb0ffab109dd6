"""What a person sees while a run goes: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from attention_plasticity.run.runner import Watcher
from qk_dump.hub.commands import byte_bar


class _HeadsPerSecond(ProgressColumn):
    """Speed over the heads of this run, not counting those an earlier run had finished."""

    def render(self, task: Task) -> Text:
        fresh = task.completed - task.fields["kept"]
        elapsed = time.monotonic() - task.fields["began"]
        return Text(f"{fresh / elapsed:.1f} heads/s" if fresh and elapsed > 0 else "– heads/s")


class TerminalWatcher(Watcher):
    """Notes go to standard error; the bar only appears when that is a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._failed = 0
        self._stack = ExitStack()
        self._fetching: Callable[[int, int], None] | None = None

    def note(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(text, markup=False)

    def fetch(self, done: int, total: int) -> None:
        """Show how much of a dump has come from the Hub."""
        if self._fetching is None:
            self._fetching = self._stack.enter_context(byte_bar("fetching"))
        self._fetching(done, total)
        if done >= total:
            self._stack.close()
            self._fetching = None

    def start(self, total: int, done: int) -> None:
        """Show the bar."""
        if not sys.stderr.isatty() or total == done:
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _HeadsPerSecond(),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("{task.fields[failed]}", style="red"),
            console=self._console,
        )
        self._progress.start()
        self._task = self._progress.add_task(
            "heads", total=total, completed=done, kept=done, began=time.monotonic(), failed=""
        )

    def advance(self, failed: bool) -> None:
        """Count one head."""
        self._failed += failed
        if self._progress is not None and self._task is not None:
            note = f"{self._failed} failed" if self._failed else ""
            self._progress.update(self._task, advance=1, failed=note)

    def stop(self) -> None:
        """Leave the bar as it stands."""
        self._stack.close()
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
