"""Runs and their labels as a caller of the library gives them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from attention_plasticity.tables.finished_run import FinishedRun
from qk_toolkit.errors import ConfigError

AnyRun = FinishedRun | str | os.PathLike[str]


def opened_runs(
    runs: Sequence[AnyRun], labels: Sequence[str] | None
) -> tuple[list[FinishedRun], list[str] | None]:
    """The runs, opened where they are folders, and their labels, or None.

    Raises a `ConfigError` for a single run or a text in place of a list, for items of other types,
    and for folders that hold no run.
    """
    return [_opened(run) for run in _listed(runs)], None if labels is None else _texts(labels)


def _listed(runs: Any) -> list[Any]:
    if isinstance(runs, FinishedRun | str | os.PathLike):
        raise ConfigError(f"runs: expected a list of runs, got {runs!r}; put it in a list")
    if not isinstance(runs, Iterable):
        raise ConfigError(f"runs: expected a list of runs, got {runs!r}")
    return list(runs)


def _opened(run: Any) -> FinishedRun:
    if isinstance(run, FinishedRun):
        return run
    if not isinstance(run, str | os.PathLike):
        raise ConfigError(f"runs: expected runs or folders of runs, got {run!r}")
    return FinishedRun.open(run)


def _texts(labels: Any) -> list[str]:
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise ConfigError(f"labels: expected a list of texts, one for each run, got {labels!r}")
    listed = list(labels)
    for label in listed:
        if not isinstance(label, str):
            raise ConfigError(f"labels: {label!r}: expected a text, such as {str(label)!r}")
    return listed
