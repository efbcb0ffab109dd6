"""Attention by distance for the page, in few bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.page.payload import Column
from attention_plasticity.tables.attention_masses import mass_bins, row_masses_without_sinks
from attention_plasticity.tables.finished_run import FinishedRun

SCALE, UNKNOWN = 10_000, 65_535
_IDS = ("layer", "q_head", "q_bucket", "q_position", "n_queries", "n_tokens")


def attention_columns(run: FinishedRun, table: pd.DataFrame) -> dict[str, Column]:
    """Columns with one value per head and query bucket, of the bins that have attention.

    `mass_N` is the share of attention of the bin that begins at distance N, without the first four
    tokens of the text, which are in `mass_sinks`. `half_` is half the width of its 95 % interval.
    These are integers: the share times 10,000, or 65,535 if it is not known.
    """
    bins = mass_bins(table)
    values, half = row_masses_without_sinks(table, bins, run.geometry)  # (rows, 1 + bins)
    found: dict[str, Column] = {}
    for name in _IDS:
        column = table[name].to_numpy()
        found[name] = column.astype(np.float32) if column.dtype.kind == "f" else column
    for place, name in enumerate(["sinks", *map(str, bins)]):
        found[f"mass_{name}"] = _integers(values[:, place])
        found[f"half_{name}"] = _integers(half[:, place])
    return found


def distant_from(run: FinishedRun) -> int | None:
    """The distance at which distant attention begins; None if the run does not record it."""
    value = run.settings.get("distant_from")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _integers(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    known = np.isfinite(shares)
    scaled = np.round(SCALE * np.where(known, shares, 0.0)).clip(0, UNKNOWN - 1)
    return np.where(known, scaled, UNKNOWN).astype(np.int64)
