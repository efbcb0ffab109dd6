"""Tables of a run as figures, the page and comparisons read them.

Files of this version and of earlier ones, whose columns had other names, checked before anything is
drawn. A run is a folder; one table of it can also be given alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from attention_plasticity.run.outputs import RUN_FILE, require_unchanged
from attention_plasticity.run.run_info import read_run_info
from attention_plasticity.tables.names import clean
from qk_dump.buckets import BucketGeometry, geometry_of
from qk_dump.limits import MOST_HEADS, MOST_LAYERS
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import resolved, user_path
from qk_toolkit.settings import nearest

TableKind = Literal["head_metrics", "bucket_plasticity", "component_weights"]

FILE_NAMES: dict[TableKind, str] = {
    "head_metrics": "head_metrics.csv",
    "bucket_plasticity": "head_bucket_plasticity.csv",
    "component_weights": "head_component_weights.csv",
}
_NEEDED: dict[TableKind, tuple[str, ...]] = {
    "head_metrics": ("layer", "q_head", "ap_overall"),
    "bucket_plasticity": ("layer", "q_head", "q_bucket", "k_bucket", "plasticity"),
    "component_weights": ("layer", "q_head", "component", "weight"),
}
_EARLIER = {"ap_bucket": "plasticity", "component_weight": "weight"}
_INTEGERS = {"layer": MOST_LAYERS, "q_head": MOST_HEADS, "k_head": MOST_HEADS}
_INTEGERS |= dict.fromkeys(("q_bucket", "k_bucket", "component"), 2**53)
"""Columns of integers, and what they must stay below."""


@dataclass(frozen=True)
class RunTables:
    """A run's folder: its tables, and what run.json says (nothing in a folder without one)."""

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

    def _table(self, kind: TableKind) -> pd.DataFrame:
        return read_table(self.checked_path(kind), kind)

    @property
    def dump(self) -> dict[str, Any]:
        """The manifest of the dump that was analysed."""
        return (self.info.get("input") or {}).get("dump") or {}

    @property
    def geometry(self) -> BucketGeometry | None:
        """Where its buckets begin, when the dump told."""
        return geometry_of(self.dump.get("bucket_type"), self.dump.get("min_bucket_size"))

    @property
    def warnings(self) -> list[str]:
        """What the run says about the sample behind its numbers."""
        return [record["text"] for record in self.info.get("warnings") or []]

    @property
    def model_name(self) -> str:
        """The model's name without its owner, or the folder's."""
        model = clean(self.dump.get("model") or "").rstrip("/")
        return model.rsplit("/", 1)[-1].strip() or clean(resolved(self.folder).name)

    def path(self, kind: TableKind) -> Path:
        """Where a table lies."""
        tables = self.info.get("tables")
        if tables == {}:
            raise ConfigError(f"{self.folder}: no head was analysed, so there are no tables")
        return self.folder / (tables or FILE_NAMES).get(kind, FILE_NAMES[kind])

    def checked_path(self, kind: TableKind) -> Path:
        """The same, provided the table is still what the run wrote, where run.json tells that."""
        path, digest = self.path(kind), (self.info.get("sha256") or {}).get(kind)
        if digest is not None:
            require_unchanged(path, digest)
        return path


def open_tables(folder: str | os.PathLike[str]) -> RunTables:
    """A run's folder, or one that holds its tables alone."""
    path = user_path(folder)
    if not path.is_dir():
        state = "is a file, not the folder of a run" if path.exists() else "does not exist"
        raise ConfigError(f"{path}: {state}")
    file = path / RUN_FILE
    try:
        info = read_run_info(file)
    except FileNotFoundError as error:
        if not any((path / name).is_file() for name in FILE_NAMES.values()):
            raise ConfigError(
                f"{path}: holds neither {RUN_FILE} nor tables; give the output_dir of an analysis"
            ) from error
        info = {}
    return RunTables(path, info)


def labels_of(runs: Sequence[RunTables], given: Sequence[str] | None = None) -> list[str]:
    """A name for each run: as given, or its model, with the folder where models repeat."""
    if given is None:
        models = [run.model_name for run in runs]
        named = [
            model if models.count(model) == 1 else f"{model} ({clean(resolved(run.folder).name)})"
            for model, run in zip(models, runs, strict=True)
        ]
        return [
            name if named.count(name) == 1 else f"{name} {named[: place + 1].count(name)}"
            for place, name in enumerate(named)
        ]
    labels = [clean(label) for label in given]
    if len(labels) != len(runs):
        raise ConfigError(f"labels: {len(labels)} given for {len(runs)} runs; give one for each")
    if not all(labels) or len(set(labels)) < len(labels):
        raise ConfigError(f"labels: must be different and not empty, got {', '.join(labels)}")
    return labels


def read_table(path: Path, kind: TableKind, needed: Iterable[str] = ()) -> pd.DataFrame:
    """A table with its columns under their present names, numbers only."""
    try:
        table = pd.read_csv(path)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: does not exist") from error
    except pd.errors.EmptyDataError as error:
        raise ConfigError(f"{path}: is empty") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as CSV: {_one_line(error)}") from error
    table = table.rename(
        columns={old: new for old, new in _EARLIER.items() if new not in table.columns}
    )
    require_columns(table, (*_NEEDED[kind], *needed), path)
    if table.empty:
        raise ConfigError(f"{path}: holds no rows")
    for name in table.columns:
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise ConfigError(f"{path}: {name}: expected numbers, got {_first_word(table[name])}")
    for name in _INTEGERS.keys() & set(table.columns):
        values, end = table[name].to_numpy(dtype=np.float64), _INTEGERS[name]
        if not ((values == np.floor(values)) & (values >= 0) & (values < end)).all():
            range_ = f"0 to {end - 1}" if end < 2**53 else "at least 0"
            raise ConfigError(f"{path}: {name}: expected integers of {range_}")
        table[name] = values.astype(np.int64)
    return table


def require_columns(table: pd.DataFrame, names: Iterable[str], source: object) -> None:
    """Refuse a table that lacks a column, naming it and those that are there."""
    old_name = {new: old for old, new in _EARLIER.items()}
    for name in names:
        if name not in table.columns:
            also = f" (nor {old_name[name]!r})" if name in old_name else ""
            found = [str(column) for column in table.columns]
            hint = nearest(name, found)
            hint = "" if "--help" in hint else hint
            raise ConfigError(
                f"{source}: has no column {name!r}{also}; its columns are {', '.join(found)}{hint}"
            )


def require_values(table: pd.DataFrame, column: str, source: object) -> None:
    """Refuse a column in which nothing is known."""
    if not table[column].notna().any():
        raise ConfigError(f"{source}: {column}: every value is NaN, so there is nothing to draw")


def _first_word(column: pd.Series[Any]) -> str:
    wrong = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
    return repr(wrong.iloc[0]) if len(wrong) else "something else"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
