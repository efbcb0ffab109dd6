"""Mean profiles over the context of compared runs: plasticity per bin, or per query bucket."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.tables.bin_cells import bin_cells
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import mean_bucket_errors
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, PlasticityColumns
from attention_plasticity.tables.profiles import head_profiles, mean_profile

PROFILE_COLUMNS = (
    *("run", "layer_type", "heads", "part", "position"),
    *("plasticity", "half_width", "n_groups"),
)


def profile_table(runs: Sequence[ComparedRun], shown: PlasticityColumns) -> pd.DataFrame:
    """One row per run, type of layers and bin or query bucket that has a value.

    `part` is the bin or bucket, `position` the mean position of its queries, NaN if it is not
    known, and `half_width` half of the 95 % interval of the mean over heads, which buckets do not
    have.
    """
    tables = [
        _profile(part, shown).assign(run=run.label, layer_type=layer_type)
        for run in runs
        for layer_type, part in run.parts.items()
    ]
    return pd.concat(tables, ignore_index=True).reindex(columns=list(PROFILE_COLUMNS))


def _profile(run: FinishedRun, shown: PlasticityColumns) -> pd.DataFrame:
    in_bins = shown is AT_ONE_POSITION
    table = run.table("bins") if in_bins else run.bucket_plasticity
    profiles = head_profiles(bin_cells(table, run.pair_sampling)).dropna(subset=["plasticity"])
    mean = mean_profile(profiles).assign(heads=len(run.head_metrics))
    names = {"q_bucket": "part", "q_position": "position"}
    errors = mean_bucket_errors(run) if in_bins else None
    if errors is None:
        return mean.assign(half_width=np.nan, n_groups=np.nan).rename(columns=names)
    widths = errors[["q_bucket", "half_width", "n_groups"]]
    return mean.merge(widths, on="q_bucket", how="left").rename(columns=names)
