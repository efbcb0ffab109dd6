"""95 % intervals of values, marks of heads and means over heads, for the page."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from attention_plasticity.metrics import (
    BUCKET_QUANTITY,
    CORRECTED,
    DRIFT_COLUMNS,
    MEAN_COLUMNS,
    PHASE,
    POOLED,
    WITH_ERROR,
)
from attention_plasticity.page.payload import Column
from attention_plasticity.run.head_means import gap_is_large
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import (
    bucket_errors,
    head_half_width,
    mean_bucket_errors,
    mean_over_heads,
)
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from attention_plasticity.tables.profiles import HEAD

_GAP = ["ap_gaussian_gap", "ap_gaussian_gap_se"]
_BUCKET = [*HEAD, "q_bucket"]


def stored_heads(heads: pd.DataFrame) -> pd.DataFrame:
    """The table of heads without the corrected values: the page computes value minus bias."""
    names = [str(name) for name in heads]
    computed = [name for name in names if name.endswith(CORRECTED) and _is_difference(heads, name)]
    return heads.drop(columns=computed)


def _is_difference(heads: pd.DataFrame, name: str) -> bool:
    """Whether a corrected value is a column minus its bias in every head, up to rounding."""
    value, bias = name.removesuffix(CORRECTED), f"{name.removesuffix(CORRECTED)}_bias"
    if value not in heads or bias not in heads:
        return False
    difference = heads[value] - heads[bias]  # (heads,)
    return bool(np.allclose(heads[name], difference, rtol=1e-12, atol=1e-15, equal_nan=True))


def head_estimates(heads: pd.DataFrame, influences: pd.DataFrame | None) -> dict[str, Column]:
    """Columns with one value per head; empty if errors are not known.

    `NAME_half_width` is half the width of the 95 % interval of a value, and `gap_is_large` is 1 in
    heads whose Gaussian model differs from the count.
    """
    found: dict[str, Column] = {}
    for name in WITH_ERROR:
        if _known(heads, f"{name}_se"):
            half = head_half_width(heads, name, influences)  # (heads,)
            if np.isfinite(half).any():
                found[f"{name}_half_width"] = half.astype(np.float32)
    if all(_known(heads, name) for name in _GAP):
        rows = [dict(zip(_GAP, row, strict=True)) for row in heads[_GAP].to_numpy().tolist()]
        found["gap_is_large"] = np.array([gap_is_large(row) for row in rows])  # (heads,)
    return found


def head_means(run: FinishedRun) -> dict[str, list[float | None]]:
    """Mean over heads and its standard error, as `analyze` prints them; without unknown errors."""
    names = (*AT_ONE_POSITION.all, POOLED, PHASE, *MEAN_COLUMNS, *DRIFT_COLUMNS)
    known = [name for name in names if _known(run.head_metrics, f"{name}_se")]
    means = {name: mean_over_heads(run, name) for name in known}
    return {
        name: [mean.value, mean.standard_error]
        for name, mean in means.items()
        if math.isfinite(mean.value) and math.isfinite(mean.standard_error)
    }


def with_intervals(
    run: FinishedRun, profiles: pd.DataFrame, quantity: str = BUCKET_QUANTITY
) -> pd.DataFrame:
    """Profiles of heads with plasticity corrected for bias, and with `half_width`.

    Profiles are unchanged if the run has no influences of this quantity.
    """
    rows = bucket_errors(run, quantity)
    if rows is None or rows.empty:
        return profiles
    merged = profiles.merge(rows[[*_BUCKET, "bias", "half_width"]], on=_BUCKET, how="left")
    merged["plasticity"] -= merged.pop("bias").fillna(0.0)
    return merged


def mean_with_intervals(
    run: FinishedRun, mean: pd.DataFrame, quantity: str = BUCKET_QUANTITY
) -> pd.DataFrame:
    """The mean profile with `half_width`: NaN where the influences of a head are missing."""
    errors, rows = mean_bucket_errors(run, quantity), bucket_errors(run, quantity)
    if errors is None or rows is None or rows.empty:
        return mean
    width = errors.set_index("q_bucket")["half_width"].reindex(mean["q_bucket"]).to_numpy()
    heads = rows[rows["value"].notna()].groupby("q_bucket").size().reindex(mean["q_bucket"])
    return mean.assign(half_width=np.where(heads.to_numpy() == mean["heads"], width, np.nan))


def _known(table: pd.DataFrame, name: str) -> bool:
    return name in table and bool(table[name].notna().any())
