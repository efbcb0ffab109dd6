"""Cells of a run, summed up: plasticity per query bucket, and the mean over heads per cell."""

from __future__ import annotations

import numpy as np
import pandas as pd

HEAD = ["layer", "q_head"]


def head_profiles(cells: pd.DataFrame) -> pd.DataFrame:
    """`AP_j` of every head: `layer, q_head, q_bucket, plasticity, q_position, n_queries`.

    The mean over a query bucket's pairs: cells count by their pairs, or all alike in files of
    earlier versions. A bucket whose cells are all NaN is NaN. Columns a file lacks are left out.
    """
    known = cells["plasticity"].notna()
    pairs = cells["n_pairs"] if "n_pairs" in cells else pd.Series(1, index=cells.index)
    weight = pairs.where(known, 0).astype(np.float64)
    summed = (
        cells[[*HEAD, "q_bucket"]]
        .assign(weight=weight, weighted=weight * cells["plasticity"].fillna(0.0))
        .groupby([*HEAD, "q_bucket"], as_index=False)
        .sum()
    )
    total = summed.pop("weight")
    summed["plasticity"] = summed.pop("weighted") / total.where(total > 0)
    told = [name for name in ("q_position", "n_queries") if name in cells]
    if told:
        first = cells.groupby([*HEAD, "q_bucket"], as_index=False)[told].first()
        summed = summed.merge(first, on=[*HEAD, "q_bucket"])
    return summed


def mean_profile(profiles: pd.DataFrame) -> pd.DataFrame:
    """Over heads, per query bucket: mean plasticity and position, quartiles, and how many heads."""
    grouped = profiles.groupby("q_bucket")
    mean = pd.DataFrame(
        {
            "plasticity": grouped["plasticity"].mean(),
            "low": grouped["plasticity"].quantile(0.25),
            "high": grouped["plasticity"].quantile(0.75),
            "heads": grouped["plasticity"].count(),
        }
    )
    if "q_position" in profiles:
        mean["q_position"] = grouped["q_position"].mean()
    return mean.reset_index()


def heads_with_gaps(cells: pd.DataFrame) -> int:
    """How many heads have a cell without a value."""
    gaps = cells[cells["plasticity"].isna()]
    return len(gaps[HEAD].drop_duplicates())
