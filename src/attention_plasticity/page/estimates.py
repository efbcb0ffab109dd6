"""95 % intervals of values, the groups of texts behind them, and means over heads, for the page."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from attention_plasticity.metrics import ALIGNED_DROP, BIN_QUANTITY, HEAD_METRICS
from attention_plasticity.page.payload import Column
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    bucket_errors,
    half_width,
    head_half_width,
    mean_bucket_errors,
    mean_half_width,
    mean_over_heads,
    p_values,
    quantity_groups,
)
from attention_plasticity.tables.profiles import HEAD, mean_profile

PER_ERROR = "half_widths_per_error"
_BIN = [*HEAD, "q_bucket"]


def head_estimates(heads: pd.DataFrame, influences: pd.DataFrame | None) -> dict[str, Column]:
    """Columns with one value per head; empty if errors are not known.

    `NAME_half_width` is half of the 95 % interval of a value, and `NAME_groups` the number of
    groups of texts behind it; 0 if it is not known. `ap_aligned_drop_differs` is 1 if the drop
    differs from 0, tested for all heads at once as in the summary.
    """
    found: dict[str, Column] = {}
    for name in HEAD_METRICS.with_error:
        half = head_half_width(heads, name, influences)  # (heads,)
        if np.isfinite(half).any():
            groups = quantity_groups(heads, name, influences)  # (heads,)
            with np.errstate(over="ignore"):
                found[f"{name}_half_width"] = half.astype(np.float32)
            found[f"{name}_groups"] = np.nan_to_num(groups).astype(np.int64)
    if f"{ALIGNED_DROP}_half_width" in found:
        tests = p_values(heads, ALIGNED_DROP, influences)  # (heads,)
        found[f"{ALIGNED_DROP}_differs"] = benjamini_hochberg(tests).astype(np.int64)
    return found


def head_means(run: FinishedRun) -> dict[str, list[float]]:
    """Mean over heads and half of its 95 % interval; without means whose interval is not known."""
    names = [name for name in HEAD_METRICS.averaged if name in run.head_metrics]
    means = {name: mean_over_heads(run, name) for name in names}
    numbers = {name: [mean.value, mean_half_width(mean)] for name, mean in means.items()}
    return {name: pair for name, pair in numbers.items() if all(map(math.isfinite, pair))}


def bin_intervals(
    run: FinishedRun, profiles: pd.DataFrame, quantity: str = BIN_QUANTITY
) -> pd.DataFrame:
    """Profiles of bins with `half_width`, and half widths per standard error, for cells.

    Profiles are unchanged if the run has no influences of this quantity.
    """
    rows = bucket_errors(run, quantity)
    if rows is None or rows.empty:
        return profiles
    rows[PER_ERROR] = half_width(1.0, rows["n_groups"].where(rows["half_width"].notna()))
    return profiles.merge(rows[[*_BIN, "half_width", PER_ERROR]], on=_BIN, how="left")


def mean_of_bins(run: FinishedRun, profiles: pd.DataFrame) -> pd.DataFrame:
    """The mean profile with `half_width`: NaN where the influences of a head are missing."""
    mean = drawn_mean(profiles)
    errors, rows = mean_bucket_errors(run), bucket_errors(run)
    if errors is None or rows is None or rows.empty:
        return mean
    width = errors.set_index("q_bucket")["half_width"].reindex(mean["q_bucket"]).to_numpy()
    heads = rows[rows["value"].notna()].groupby("q_bucket").size().reindex(mean["q_bucket"])
    return mean.assign(half_width=np.where(heads.to_numpy() == mean["heads"], width, np.nan))


def drawn_mean(profiles: pd.DataFrame) -> pd.DataFrame:
    """The mean profile over heads, without bins or buckets in which no head has a value."""
    mean = mean_profile(profiles)
    return mean[mean["heads"] > 0].reset_index(drop=True)
