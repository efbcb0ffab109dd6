"""Tables of a run, read from CSV files and checked.

Files of the original tool, in which two columns have other names, are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from attention_plasticity.metrics import (
    POOLED,
    TABLES,
    WORDS,
    TableKind,
)
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest

_NEEDED: dict[TableKind, tuple[str, ...]] = {
    "head_metrics": ("layer", "q_head"),
    "bucket_plasticity": ("layer", "q_head", "q_bucket", "k_bucket", "plasticity"),
    "bins": ("layer", "q_head", "q_bin", "k_bin", "plasticity", "pooled"),
    "component_weights": ("layer", "q_head", "component", "weight"),
}
"""Columns without which a table of the original tool, or an edited one, cannot be used."""
_EARLIER = {"ap_bucket": "plasticity", "component_weight": "weight"}
_COLUMNS = {metric.column: metric for table in TABLES.values() for metric in table.columns}
_TOKENS = ("query_token", "key_token")
_READ_WORDS: dict[str, Any] = {  # tokens such as "nan" and "NA" are texts
    "dtype": dict.fromkeys(_TOKENS, str),
    "keep_default_na": False,
    "na_values": {name: ["nan", ""] for name in WORDS.names if name not in _TOKENS},
}
_TEXTS = [name for name, metric in _COLUMNS.items() if metric.format == "text"]
_INTEGERS = {name for name, metric in _COLUMNS.items() if metric.format == "index"} - {"bin"}


def read_table(path: Path, kind: TableKind) -> pd.DataFrame:
    """A table of numbers, with the current names of its columns."""
    try:
        table: pd.DataFrame = pd.read_csv(path, **(_READ_WORDS if kind == "words" else {}))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: does not exist") from error
    except pd.errors.EmptyDataError as error:
        raise ConfigError(f"{path}: is empty") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as CSV: {_one_line(error)}") from error
    table = table.rename(
        columns={old: new for old, new in _EARLIER.items() if new not in table.columns}
    )
    require_columns(table, _NEEDED.get(kind, ()), path)
    if kind == "head_metrics" and POOLED not in table:  # a table of the original tool
        require_columns(table, ["ap_overall"], path)
    if table.empty and kind != "influences":  # no rows if the texts are not known
        raise ConfigError(f"{path}: holds no rows")
    for name in table.columns.difference(_TEXTS):
        if not is_numeric_dtype(table[name]):
            table[name] = _numbers(table[name], f"{path}: {name}")
        if name in _INTEGERS:
            table[name] = _integers(table[name], f"{path}: {name}")
    return table


def _numbers(column: pd.Series[Any], where: str) -> pd.Series[Any]:
    """A column of numbers. Raises if it has another value."""
    numbers = pd.to_numeric(column, errors="coerce")
    wrong = column[numbers.isna() & column.notna()]
    if len(wrong):
        raise ConfigError(f"{where}: expected numbers, got {wrong.iloc[0]!r}")
    return numbers


def _integers(numbers: pd.Series[Any], where: str) -> pd.Series[Any]:
    """A column of integers of at least 0. Raises if it has another value."""
    wrong = numbers[(numbers % 1 != 0) | (numbers < 0)]
    if len(wrong):
        raise ConfigError(f"{where}: expected integers of at least 0, got {wrong.iloc[0]}")
    return numbers.astype(np.int64)


def require_columns(table: pd.DataFrame, names: Iterable[str], source: object) -> None:
    """Refuse a table without a required column."""
    old_name = {new: old for old, new in _EARLIER.items()}
    for name in names:
        if name not in table.columns:
            also = f" (nor {old_name[name]!r})" if name in old_name else ""
            found = [str(column) for column in table.columns]
            raise ConfigError(
                f"{source}: has no column {name!r}{also}; its columns are {', '.join(found)}"
                f"{nearest(name, found)}"
            )


def require_values(table: pd.DataFrame, column: str, source: object) -> None:
    """Refuse a column in which every value is NaN."""
    if not table[column].notna().any():
        raise ConfigError(f"{source}: {column}: every value is NaN, so there is nothing to draw")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
