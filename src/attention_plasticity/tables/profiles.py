"""Plasticity per query bucket, for each head and as a mean over heads."""

from __future__ import annotations

import numpy as np
import pandas as pd

HEAD = ["layer", "q_head"]


def head_profiles(cells: pd.DataFrame) -> pd.DataFrame:
    """`AP_j` of every head: `layer, q_head, q_bucket, plasticity, q_position, n_queries, n_texts`.

    Plasticity is the mean over the pairs of a query bucket: cells are weighted by their number of
    pairs, or equally in files without these numbers. Cells of bins have a column `weight`. A cell
    without a value takes no part; without any value the plasticity is NaN. Columns that are missing
    in the file are left out.
    """
    known = cells["plasticity"].notna()
    found = next((cells[name] for name in ("weight", "n_pairs") if name in cells), None)
    pairs = pd.Series(1, index=cells.index) if found is None else found
    weight = pairs.where(known, 0).astype(np.float64)
    summed = (
        cells[[*HEAD, "q_bucket"]]
        .assign(weight=weight, weighted=weight * cells["plasticity"].fillna(0.0))
        .groupby([*HEAD, "q_bucket"], as_index=False)
        .sum()
    )
    total = summed.pop("weight")
    summed["plasticity"] = summed.pop("weighted") / total.where(total > 0)
    extra = [name for name in ("q_position", "n_queries", "n_texts") if name in cells]
    if extra:
        first = cells.groupby([*HEAD, "q_bucket"], as_index=False)[extra].first()
        summed = summed.merge(first, on=[*HEAD, "q_bucket"])
    return summed


def mean_profile(profiles: pd.DataFrame) -> pd.DataFrame:
    """Per query bucket, over heads: mean plasticity and position, quartiles, number of heads."""
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
    """Number of heads that have a cell without a value."""
    gaps = cells[cells["plasticity"].isna()]
    return len(gaps[HEAD].drop_duplicates())
