"""Shares of the variance of the logit by eighths of the rotary bands.

The shares are summed over eighths of the bands of a head, from the fastest to the slowest. They sum
to 1 with the share of the dimensions that RoPE does not turn. An eighth has the same dimensions in
two models of one architecture, also if RoPE is scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.compare.lengths import Columns
from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.measure.bands import UNTURNED, band_eighths
from attention_plasticity.metrics import BAND_QUANTITY, GROUP_COLUMNS, HEAD, UNTURNED_QUANTITY
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import HeadColumn
from qk_toolkit.arrays import Array

BAND_SHARE = "variance_share"
NOT_TURNED = "not turned"
_ROUNDING = 1e-6  # a smaller share of the dimensions that do not turn is a rounding error
_ERRORS = [*GROUP_COLUMNS, "n_groups"]


def by_band(runs: Sequence[NamedRun]) -> list[Columns]:
    """The shares of each run. The groups are `1` to `8`, and `not turned`."""
    return [_columns(one.run) if one.run.has("bands") else {} for one in runs]


def wavelengths(run: FinishedRun) -> dict[str, tuple[float, float]]:
    """The shortest and the longest wavelength of every eighth, in tokens; empty without bands."""
    if not run.has("bands"):
        return {}
    turned = _numbered(run.table("bands"))
    ends = turned[turned["eighth"] != UNTURNED].groupby("eighth")["wavelength"].agg(["min", "max"])
    return {_name(int(number)): (low, high) for number, low, high in ends.itertuples()}


def _name(eighth: int) -> str:
    return NOT_TURNED if eighth == UNTURNED else str(eighth + 1)


def _numbered(bands: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table with known shares, with the eighth of each band."""
    known = bands[bands["variance_share"].notna()]
    number = known["band"].to_numpy(np.int64)  # (rows,)
    size = known.groupby(list(HEAD))["band"].transform("max").to_numpy(np.int64) + 1
    eighth = np.empty(len(known), np.int64)
    for m in np.unique(size).tolist():
        own = size == m
        eighth[own] = band_eighths(np.ones(m))[number[own]]
    return known.assign(eighth=np.where(known["wavelength"].isna(), UNTURNED, eighth))


def _columns(run: FinishedRun) -> Columns:
    """Shares of every head by eighth, with influences if the run has them."""
    shares = _numbered(run.table("bands")).pivot_table(
        "variance_share", index=list(HEAD), columns="eighth", aggfunc="sum", fill_value=0.0
    )  # (heads, eighths)
    rest = 1.0 - shares.sum(axis=1)
    if (rest.abs() > _ROUNDING).any():
        shares[UNTURNED] = shares.get(UNTURNED, 0.0) + rest
    influences = _influences(run.influences)
    groups = _groups(influences, shares.index)  # (heads,)
    heads = tuple((int(layer), int(head)) for layer, head in shares.index)
    found: Columns = {}
    for number in sorted(map(int, shares.columns), key=lambda one: (one == UNTURNED, one)):
        known = _of_eighth(influences, number, shares.index, groups)  # (heads, g)
        values = shares[number].to_numpy(np.float64)
        column = HeadColumn(heads, values, known, groups, run.eligible_heads)
        found[BAND_SHARE, _name(number)] = column
    return found


def _influences(table: pd.DataFrame | None) -> Mapping[int, pd.DataFrame]:
    """The influences on the shares by eighth, with heads as index."""
    if table is None:
        return {}
    rows = table[table["quantity"].isin([BAND_QUANTITY, UNTURNED_QUANTITY])]
    numbers = rows["bin"].where(rows["quantity"] == BAND_QUANTITY, UNTURNED).astype(np.int64)
    return {
        number: rows[(numbers == number).to_numpy()].set_index(list(HEAD))[_ERRORS]
        for number in set(numbers.tolist())
    }


def _groups(influences: Mapping[int, pd.DataFrame], heads: pd.Index[Any]) -> Array:
    """(heads,) groups of texts behind the shares; NaN if they are not known."""
    if not influences:
        return np.full(len(heads), np.nan)
    groups = pd.concat(influences.values()).groupby(level=[0, 1])["n_groups"].max()
    return groups.reindex(heads).to_numpy(np.float64)


def _of_eighth(
    influences: Mapping[int, pd.DataFrame], number: int, heads: pd.Index[Any], groups: Array
) -> Array:
    """(heads, g) influences; NaN if they are not known.

    A head without a band of this eighth has no influence on its share, which is 0.
    """
    if number not in influences:
        return np.where(np.isnan(groups)[:, None], np.nan, np.zeros(len(GROUP_COLUMNS)))
    own = influences[number].reindex(heads)
    absent = own["n_groups"].isna().to_numpy() & ~np.isnan(groups)  # (heads,)
    found = own[list(GROUP_COLUMNS)].to_numpy(np.float64)
    return np.where(absent[:, None], 0.0, found)
