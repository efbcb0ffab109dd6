"""The library's front door: analyse a dump, or open a finished run, and get DataFrames."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_plasticity.config import RunnerConfig, make_config
from attention_plasticity.run.outputs import RUN_FILE, require_unchanged
from attention_plasticity.run.run_info import read_run_info
from qk_dump.layout import Dump
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import user_path

if TYPE_CHECKING:
    import pandas as pd

    from attention_plasticity.report import Report


@dataclass(frozen=True)
class Run:
    """A finished run: its tables as DataFrames and, in `info`, what run.json says."""

    folder: Path
    info: dict[str, Any] = field(repr=False)

    @cached_property
    def head_metrics(self) -> pd.DataFrame:
        """One row per query head."""
        return self._table("head_metrics")

    @cached_property
    def bucket_plasticity(self) -> pd.DataFrame:
        """One row per query head, query bucket and key bucket."""
        return self._table("bucket_plasticity")

    @cached_property
    def component_weights(self) -> pd.DataFrame:
        """One row per query head and dimension."""
        return self._table("component_weights")

    @cached_property
    def failures(self) -> pd.DataFrame:
        """Heads that could not be analysed, each with the reason."""
        import pandas as pd

        return pd.DataFrame(self.info["failures"], columns=["layer", "q_head", "k_head", "reason"])

    def report(self) -> Report:
        """The interactive page: shown inline by a notebook, `.save(path)` makes a file of it."""
        from attention_plasticity.report import make_report
        from attention_plasticity.tables.tables import RunTables

        return make_report([RunTables(self.folder, self.info)])

    def _table(self, kind: str) -> pd.DataFrame:
        import pandas as pd

        if kind not in self.info["tables"]:
            raise ToolkitError(f"{self.folder}: no head was analysed; run.failures says why")
        path = self.folder / self.info["tables"][kind]
        require_unchanged(path, self.info["sha256"].get(kind))
        return pd.read_csv(path)


def analyze_dump(
    dump: Dump | str | os.PathLike[str],
    config: RunnerConfig | Mapping[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """Analyse every head of a dump and write the tables, as the command line does.

    `fields` are settings of `RunnerConfig`, on top of `config`. A run that was interrupted
    continues. The dump may be on the Hub, `hf://datasets/owner/name@branch`. Raises when no head
    could be analysed; `Run.failures` lists those that failed.
    """
    from attention_plasticity.run.runner import run_analysis

    for name in {"dataset_local_root", "dry_run"} & set(fields):
        raise ConfigError(f"{name}: cannot be given here; the dump is the first argument")
    given = _as_fields(config) | fields
    given.pop("dry_run", None)
    if isinstance(dump, Dump):
        given |= {"dataset_local_root": str(dump.path), "model_dir": None}
    else:
        given |= {"dataset_local_root": str(dump)}
    fetched = dump if isinstance(dump, Dump) and dump.origin else None  # run.json tells whence
    outcome = run_analysis(make_config(given), dump=fetched)
    if not outcome.metrics:
        raise ToolkitError(f"no head could be analysed; the first: {outcome.failures[0].reason}")
    return open_run(outcome.paths.folder)


def _as_fields(config: RunnerConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(config, RunnerConfig):
        return config.model_dump(exclude_unset=True)
    return dict(config or {})


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Open the folder of a finished run."""
    path = user_path(folder) / RUN_FILE
    try:
        info = read_run_info(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: does not exist; is this the folder of a finished run?"
        ) from error
    for name in ("tables", "sha256", "failures"):
        if name not in info:
            raise ConfigError(f"{path}: has no {name}; run the analysis again")
    return Run(path.parent, info)
