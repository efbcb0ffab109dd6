"""The table of bins with the columns of the table of cells, so that one figure can draw either."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attention_plasticity.metrics import HEAD
from attention_plasticity.read.bins import Bins
from qk_dump.positions import BucketGeometry

_LARGEST = 1 << 31  # tokens of a bin


def bin_cells(table: pd.DataFrame, pair_sampling: str | None = None) -> pd.DataFrame:
    """The table of bins as cells: `q_bucket` and `k_bucket` are the bins.

    `weight` is the weight of a cell in the plasticity of its bin of queries: all cells are equal,
    or all pairs with `pair_sampling="context"` and in layers with a window, where keys of the
    query's own bin take part. A table of cells is returned as it is.
    """
    if not has_bins(table):
        return table
    by_pairs = (table["k_bin"] >= table["q_bin"]).groupby([table[name] for name in HEAD])
    if pair_sampling == "context":
        weight = table["n_pairs"].astype(np.float64)
    else:
        weight = table["n_pairs"].where(by_pairs.transform("any"), 1).astype(np.float64)
    names = {"q_bin": "q_bucket", "k_bin": "k_bucket"}
    return table.rename(columns=names).assign(weight=weight)


def has_bins(table: pd.DataFrame) -> bool:
    """Whether a table has one row per bin of queries and bin of keys."""
    return {"q_bin", "k_bin"} <= set(table.columns)


def near_reach(table: pd.DataFrame, context: float) -> int | None:
    """The largest distance in tokens of the profile at equal distances; None if it is not known."""
    geometry = bin_geometry(table)
    if geometry is None or not context >= 1:
        return None
    size = geometry.min_size
    return (Bins(size, int(context)).near + 1) * size - 1


def bin_geometry(table: pd.DataFrame) -> BucketGeometry | None:
    """Where the bins of a table of bins begin; None if it does not have their positions."""
    if not {"q_bin", "q_start", "q_end"} <= set(table.columns):
        return None
    size = float((table["q_end"] - table["q_start"] + 1).max())
    return BucketGeometry("uniform", int(size)) if 1 <= size <= _LARGEST else None
