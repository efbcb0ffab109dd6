"""The library's front door: analyse a dump, or open a finished run, and get DataFrames."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_plasticity.config import RunnerConfig, make_config
from attention_plasticity.outputs import RUN_FILE
from qk_dump.errors import ConfigError, ToolkitError
from qk_dump.layout import Dump

if TYPE_CHECKING:
    import pandas as pd


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

    def _table(self, kind: str) -> pd.DataFrame:
        import pandas as pd

        path = self.folder / self.info["tables"][kind]
        try:
            return pd.read_csv(path)
        except FileNotFoundError as error:
            raise ToolkitError(f"{path}: is missing; run the analysis again") from error


def analyze_dump(
    dump: Dump | str | os.PathLike[str], config: RunnerConfig | None = None, **fields: Any
) -> Run:
    """Analyse every head of a dump and write the tables, as the command line does.

    `fields` are settings of `RunnerConfig`, on top of `config`. A run that was interrupted
    continues. Raises when no head could be analysed; `Run.failures` lists those that failed.
    """
    from attention_plasticity.runner import run_analysis

    for name in {"dataset_local_root", "dry_run"} & set(fields):
        raise ConfigError(f"{name}: cannot be given here; the dump is the first argument")
    given = (config.model_dump(exclude_unset=True) if config else {}) | fields
    if isinstance(dump, Dump):
        given |= {"dataset_local_root": str(dump.path), "model_dir": None}
    else:
        given |= {"dataset_local_root": str(dump)}
    outcome = run_analysis(make_config(given))
    if not outcome.metrics:
        raise ToolkitError(f"no head could be analysed; the first: {outcome.failures[0].reason}")
    return open_run(outcome.paths.folder)


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Open the folder of a finished run."""
    path = Path(folder) / RUN_FILE
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: does not exist; is this the folder of a finished run?"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return Run(Path(folder), info)
