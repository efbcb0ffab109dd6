"""What a person sees while a capture goes: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class CaptureProgress:
    """Notes go to standard error; bars only appear when that is a terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
        self._shown = sys.stderr.isatty() and not quiet
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def note(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(text, markup=False)

    def start_examples(self, total: int | None, done: int) -> None:
        """Show the bar of texts; `done` of them were finished earlier."""
        self._start(
            SpinnerColumn(),
            TextColumn("texts"),
            BarColumn(),
            MofNCompleteColumn(),
            _Speed(),
            TextColumn("{task.fields[rows]:,} rows"),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        if self._bar is not None:
            began = time.monotonic()
            self._bar.add_task("", total=total, completed=done, tokens=0, rows=0, began=began)

    def advance(self, examples: int, tokens: int = 0, rows: int = 0) -> None:
        """Count texts that were run, with their tokens and the rows kept of them."""
        if self._bar is not None:
            task = self._bar.tasks[0]
            fields = task.fields
            self._bar.update(
                task.id,
                advance=examples,
                tokens=fields["tokens"] + tokens,
                rows=fields["rows"] + rows,
            )

    def head_written(self, done: int, total: int) -> None:
        """Show how many heads have their final file."""
        if done <= 1:
            self._start(TextColumn("writing heads"), BarColumn(), MofNCompleteColumn())
            if self._bar is not None:
                self._bar.add_task("", total=total)
        if self._bar is not None:
            self._bar.update(self._bar.tasks[0].id, completed=done)

    def stop(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _start(self, *columns: ProgressColumn) -> None:
        self.stop()
        if self._shown:
            self._bar = Progress(*columns, console=self._console)
            self._bar.start()


class _Speed(ProgressColumn):
    """Tokens per second since the bar was shown."""

    def render(self, task: Task) -> Text:
        elapsed = time.monotonic() - task.fields["began"]
        tokens = task.fields["tokens"]
        return Text(f"{tokens / elapsed:,.0f} tokens/s" if tokens and elapsed > 0 else "– tokens/s")
