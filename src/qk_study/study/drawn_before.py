"""Figures of a run that an earlier command has drawn from the same tables are not drawn again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.plots.saving import caption_path
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.run_info import sha256_of
from qk_toolkit.files import read_json, write_text

TIMES = ("finished", "seconds")
"""Entries of run.json that a repeated analysis changes."""
_FILE = ".drawn.json"
_MOST_BYTES = 1 << 20


def without_times(info: dict[str, Any]) -> dict[str, Any]:
    """The content of run.json without the times of the analysis."""
    return {name: info[name] for name in info if name not in TIMES}


class DrawnBefore:
    """The record of the figures of a run: what they were drawn from, and hashes of their files."""

    def __init__(
        self, run: FinishedRun, folder: Path, form: str, names: Collection[str] | None
    ) -> None:
        self._folder = folder
        runs = {"run": run, **run.baselines}
        inputs = {
            "versions": [__version__, version("matplotlib"), version("numpy")],
            "figures": [form, None if names is None else sorted(names)],
            "runs": {name: [one.place, without_times(one.info)] for name, one in runs.items()},
        }
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        self._inputs = digest if run.info else None  # tables without run.json have no hashes

    def files(self) -> list[str] | None:
        """The names of the figures; None if they must be drawn, or drawn again."""
        try:
            record = read_json(self._folder / _FILE, most_bytes=_MOST_BYTES)
            if self._inputs is None or record["inputs"] != self._inputs:
                return None
            figures = [Path(name).name for name in record["figures"]]
            found = {name: sha256_of(self._folder / name) for name in _with_captions(figures)}
        except (OSError, ValueError, TypeError, LookupError):
            return None
        return figures if record.get("sha256") == found else None

    def save(self, figures: Iterable[str]) -> None:
        """Record figures that are finished."""
        names = list(figures)
        hashes = {name: sha256_of(self._folder / name) for name in _with_captions(names)}
        record = {"inputs": self._inputs, "figures": names, "sha256": hashes}
        write_text(self._folder / _FILE, json.dumps(record, indent=2) + "\n")


def _with_captions(figures: Iterable[str]) -> list[str]:
    return [name for figure in figures for name in (figure, caption_path(Path(figure)).name)]
