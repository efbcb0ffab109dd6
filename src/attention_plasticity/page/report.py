"""`make_report` builds the page from runs."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from qk_toolkit.errors import ConfigError
from qk_toolkit.files import require_writable, resolved, user_path, write_text

if TYPE_CHECKING:
    from attention_plasticity.tables.finished_run import FinishedRun

_NOTEBOOK_HEIGHT = 900


@dataclass(frozen=True)
class Report:
    """The page. It can be saved as a file, and notebooks show it inline."""

    html: str = field(repr=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page and return its path."""
        target = user_path(path)
        require_target(target)
        write_text(target, self.html)
        return target

    def _repr_html_(self) -> str:
        page = html.escape(self.html)
        return (
            f'<iframe srcdoc="{page}" title="Attention plasticity" '
            f'style="width:100%;height:{_NOTEBOOK_HEIGHT}px;border:0"></iframe>'
        )


def make_report(
    runs: Sequence[FinishedRun], labels: Sequence[str] | None = None, title: str | None = None
) -> Report:
    """Make a page of one or several runs. Default labels are the names of the models."""
    from attention_plasticity.page.content import run_content
    from attention_plasticity.page.html import page_html
    from attention_plasticity.page.payload import pack
    from attention_plasticity.tables.labels import labels_of

    if not runs:
        raise ConfigError("report: give the folder of at least one run")
    if title is not None and not isinstance(title, str):
        raise ConfigError(f"title: must be text, got {title!r}")
    names = labels_of(runs, labels)
    packed = []
    for run, name in zip(runs, names, strict=True):
        about, tables = run_content(run, name)
        packed.append((about, *pack(tables)))
    title = title or f"Attention plasticity: {', '.join(names)}"
    return Report(page_html(title, packed, _second_run(runs, names)))


def _second_run(runs: Sequence[FinishedRun], names: Sequence[str]) -> int | None:
    """The run beside the first when the page opens: the second, if both can be compared."""
    from attention_plasticity.compare.cautions import obstacles
    from attention_plasticity.compare.runs import named_runs

    return 1 if len(runs) > 1 and not obstacles(named_runs(runs[:2], names[:2])) else None


def require_target(target: Path, runs: Sequence[FinishedRun] = ()) -> None:
    """Raise a `ConfigError` if the page cannot be written to `target`."""
    from attention_plasticity.metrics import TABLES
    from attention_plasticity.tables.run_info import RUN_FILE
    from qk_dump.layout import refuse_inside_dump

    names = (RUN_FILE, *(table.file for table in TABLES.values()))
    run_files = {resolved(run.folder / name) for run in runs for name in names}
    if resolved(target) in run_files:
        raise ConfigError(f"{target}: is a file of the run; choose another path")
    refuse_inside_dump(target)
    require_writable(target, "Choose another path, such as report.html.")
