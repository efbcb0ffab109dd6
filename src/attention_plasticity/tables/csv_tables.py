"""Tables of a run, read from CSV files and checked.

Files of earlier versions, whose columns had other names, are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from attention_plasticity.columns import (
    BUCKET_MEANS,
    BUCKET_QUANTITY,
    GROUP_COLUMNS,
    MASS_COLUMNS,
)
from qk_dump.limits import MOST_HEADS, MOST_LAYERS
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest

TableKind = Literal[
    "head_metrics",
    "bucket_plasticity",
    "component_weights",
    "influences",
    "distances",
    "attention",
]

FILE_NAMES: dict[TableKind, str] = {
    "head_metrics": "head_metrics.csv",
    "bucket_plasticity": "head_bucket_plasticity.csv",
    "component_weights": "head_component_weights.csv",
    "influences": "head_influences.csv",
    "distances": "head_distance_plasticity.csv",
    "attention": "head_attention.csv",
}
_NEEDED: dict[TableKind, tuple[str, ...]] = {
    "head_metrics": ("layer", "q_head", "ap_overall"),
    "bucket_plasticity": ("layer", "q_head", "q_bucket", "k_bucket", "plasticity"),
    "component_weights": ("layer", "q_head", "component", "weight"),
    "distances": ("layer", "q_head", "query_distance", "key_distance", "plasticity", "n_pairs"),
    "attention": (
        *("layer", "q_head", "q_bucket", "n_queries", "n_groups"),
        *(column for name in BUCKET_MEANS for column in (name, f"{name}_se")),
        *MASS_COLUMNS,
        *(f"{name}_se" for name in MASS_COLUMNS),
    ),
    "influences": (
        "layer",
        "q_head",
        "quantity",
        "q_bucket",
        "value",
        "bias",
        "n_groups",
        *GROUP_COLUMNS,
    ),
}
_EARLIER = {"ap_bucket": "plasticity", "component_weight": "weight"}
_TEXTS = ["quantity", "layer_type"]
_INTEGERS = {"layer": MOST_LAYERS, "q_head": MOST_HEADS, "k_head": MOST_HEADS}
_INTEGERS |= dict.fromkeys(
    ("q_bucket", "k_bucket", "component", "query_distance", "key_distance"), 2**53
)
"""Columns of integers and their upper limits."""


def read_table(path: Path, kind: TableKind, needed: Iterable[str] = ()) -> pd.DataFrame:
    """A table of numbers, with the current names of its columns."""
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
    if table.empty and kind != "influences":  # no rows if the texts are not known
        raise ConfigError(f"{path}: holds no rows")
    for name in table.columns.difference(_TEXTS):
        if not table.empty and not pd.api.types.is_numeric_dtype(table[name]):
            raise ConfigError(f"{path}: {name}: expected numbers, got {_first_word(table[name])}")
    whole = _INTEGERS.keys() - ({"q_bucket"} if kind == "influences" else set())
    for name in whole & set(table.columns):
        values, end = table[name].to_numpy(dtype=np.float64), _INTEGERS[name]
        if not ((values == np.floor(values)) & (values >= 0) & (values < end)).all():
            range_ = f"0 to {end - 1}" if end < 2**53 else "at least 0"
            raise ConfigError(f"{path}: {name}: expected integers of {range_}")
        table[name] = values.astype(np.int64)
    if kind == "influences":
        _check_influences(table, path)
    return table


def _check_influences(table: pd.DataFrame, path: Path) -> None:
    buckets = table.loc[table["quantity"] == BUCKET_QUANTITY, "q_bucket"].to_numpy(np.float64)
    if not ((buckets == np.floor(buckets)) & (buckets >= 0) & (buckets < 2**53)).all():
        raise ConfigError(f"{path}: q_bucket: expected integers in the rows of {BUCKET_QUANTITY}")
    for name in ("value", "bias", *GROUP_COLUMNS):
        if np.isinf(table[name].to_numpy(np.float64)).any():
            raise ConfigError(f"{path}: {name}: expected finite numbers or nan")
    repeated = table[table.duplicated(["layer", "q_head", "quantity", "q_bucket"])]
    if len(repeated):
        row = repeated.iloc[0]
        raise ConfigError(
            f"{path}: has two rows for {row['quantity']} of layer {row['layer']}, head "
            f"{row['q_head']}; keep one"
        )


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


def _first_word(column: pd.Series[Any]) -> str:
    wrong = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
    return repr(wrong.iloc[0]) if len(wrong) else "something else"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
