"""Rows of a table in the order of their keys, which must differ."""

from __future__ import annotations

import pandas as pd

from qk_toolkit.errors import ConfigError


def ordered(table: pd.DataFrame, keys: list[str], source: object) -> pd.DataFrame:
    """The table sorted by its keys. Raises if two rows have the same keys."""
    repeated = table.duplicated(keys)
    if repeated.any():
        row = table.loc[repeated, keys].iloc[0]
        where = ", ".join(f"{name} {row[name]}" for name in keys)
        raise ConfigError(f"{source}: holds two rows for {where}; run the analysis again")
    return table.sort_values(keys, kind="stable", ignore_index=True)
