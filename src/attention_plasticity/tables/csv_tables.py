"""Tables of a run, read from CSV files and checked.

Files of the original tool, in which two columns have other names, are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.metrics import (
    BAND_QUANTITY,
    BIN_QUANTITY,
    BUCKET_MEANS,
    FIDELITY,
    GROUP_COLUMNS,
    MASS_COLUMNS,
    POOLED_BIN_QUANTITY,
    TABLES,
    WORDS,
    TableKind,
)
from qk_dump.limits import MOST_HEADS, MOST_LAYERS
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest

_NEEDED: dict[TableKind, tuple[str, ...]] = {
    "head_metrics": ("layer", "q_head", "ap_overall"),
    "bucket_plasticity": ("layer", "q_head", "q_bucket", "k_bucket", "plasticity"),
    "bins": ("layer", "q_head", "q_bin", "k_bin", "plasticity", "pooled"),
    "component_weights": ("layer", "q_head", "component", "weight"),
    "attention": (
        *("layer", "q_head", "q_bucket", "n_queries", "n_groups", "n_tokens"),
        *(f"{name}{ending}" for name in (*BUCKET_MEANS, *MASS_COLUMNS) for ending in ("", "_se")),
    ),
    "roles": ("layer", "q_head", "role", "likely_role"),
    "words": ("layer", "q_head", *WORDS.names[3:]),
    "bands": ("layer", "q_head", "band", "wavelength", "norm_product", "variance_share"),
    "kernel": ("layer", "q_head", "distance", "mean_logit", "kernel"),
    "key_heads": ("layer", "k_head", "plasticity", "static_error"),
    "fidelity": ("layer", "k_head", "score", "value_norm", *FIDELITY.with_error),
    "drift": ("layer", "q_head", "q_drift_r", "k_drift_r"),
    "influences": (
        *("layer", "q_head", "quantity", "bin", "value", "n_groups"),
        *GROUP_COLUMNS,
    ),
}
"""Columns without which a table cannot be used. Tables of the original tool have fewer columns."""
_EARLIER = {"ap_bucket": "plasticity", "component_weight": "weight"}
_COLUMNS = {metric.column: metric for table in TABLES.values() for metric in table.columns}
_TOKENS = ("query_token", "key_token")
_READ_WORDS: dict[str, Any] = {  # tokens such as "nan" and "NA" are texts
    "dtype": dict.fromkeys(_TOKENS, str),
    "keep_default_na": False,
    "na_values": {name: ["nan", ""] for name in WORDS.names if name not in _TOKENS},
}
_TEXTS = [name for name, metric in _COLUMNS.items() if metric.format == "text"]
_INTEGERS = {name: 2**53 for name, metric in _COLUMNS.items() if metric.format == "index"}
_INTEGERS |= {"layer": MOST_LAYERS, "q_head": MOST_HEADS, "k_head": MOST_HEADS}
"""Columns of integers and their upper limits."""
_ANY_SCALE = {name for name, metric in _COLUMNS.items() if metric.any_scale}
_LARGEST = 1e38  # of other numbers; sums of squares and float32 hold it


def read_table(path: Path, kind: TableKind, needed: Iterable[str] = ()) -> pd.DataFrame:
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
    require_columns(table, (*_NEEDED[kind], *needed), path)
    if table.empty and kind != "influences":  # no rows if the texts are not known
        raise ConfigError(f"{path}: holds no rows")
    if not table.empty:
        checked = table.assign(**_checked_columns(table, kind, path))
        table = checked.copy()  # joins the memory of columns, so that some can be added
    if kind == "influences":
        _check_influences(table, path)
    return table


def _checked_columns(
    table: pd.DataFrame, kind: TableKind, path: Path
) -> dict[str, pd.Series[Any] | npt.NDArray[np.int64]]:
    """The columns of numbers. Raises if one has a value that it cannot have."""
    found: dict[str, pd.Series[Any] | npt.NDArray[np.int64]] = {}
    for name in table.columns.difference(_TEXTS):
        column = _numbers(table[name], f"{path}: {name}")
        if name in _INTEGERS and name != "bin":
            found[name] = _integers(column, _INTEGERS[name], f"{path}: {name}")
        else:
            _check_range(column, name, path)
            found[name] = column
    return found


def _numbers(column: pd.Series[Any], where: str) -> pd.Series[Any]:
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return column
    texts = column.dropna().astype(str)
    numbers = pd.to_numeric(texts, errors="coerce")  # integers of many digits are texts
    if numbers.isna().any():
        raise ConfigError(f"{where}: expected numbers, got {texts[numbers.isna()].iloc[0]!r}")
    return numbers.astype(np.float64).reindex(column.index)


def _integers(column: pd.Series[Any], end: int, where: str) -> npt.NDArray[np.int64]:
    values = column.to_numpy(dtype=np.float64)
    right = (values == np.floor(values)) & (values >= 0) & (values < end)
    if not right.all():
        range_ = f"0 to {end - 1}" if end < 2**53 else "at least 0"
        raise ConfigError(f"{where}: expected integers of {range_}, got {values[~right][0]:.15g}")
    return values.astype(np.int64)


def _check_range(column: pd.Series[Any], name: str, path: Path) -> None:
    """Refuse values that no analysis writes, such as infinity. NaN is a value that is not known."""
    if name in _ANY_SCALE:
        return
    least = 0.0 if _never_negative(name) else -_LARGEST
    values = column.to_numpy(dtype=np.float64)
    wrong = values[(values < least) | (values > _LARGEST)]
    if len(wrong):
        raise ConfigError(
            f"{path}: {name}: expected numbers from {least:g} to {_LARGEST:g}, got {wrong[0]:.15g}"
        )


def _never_negative(name: str) -> bool:
    known = name in _COLUMNS and _COLUMNS[name].format == "count"
    return known or name.startswith("n_") or name.endswith("_se")


def _check_influences(table: pd.DataFrame, path: Path) -> None:
    for quantity in (BIN_QUANTITY, POOLED_BIN_QUANTITY, BAND_QUANTITY):
        bins = table.loc[table["quantity"] == quantity, "bin"].to_numpy(np.float64)
        if not ((bins == np.floor(bins)) & (bins >= 0) & (bins < 2**53)).all():
            raise ConfigError(f"{path}: bin: expected integers in the rows of {quantity}")
    repeated = table[table.duplicated(["layer", "q_head", "quantity", "bin"])]
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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
