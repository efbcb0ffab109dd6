"""Which rotary bands make the logits of each model differ: shares of the variance of the logit.

The shares are summed over eighths of the bands of a head, from the fastest to the slowest, and
averaged over heads. They sum to 1 with the share of the dimensions that RoPE does not turn. An
eighth has the same dimensions in two models of one architecture, also if RoPE is scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.matched import Pair
from attention_plasticity.family.mean_rows import MEAN_COLUMNS, mean_rows
from attention_plasticity.measure.bands import UNTURNED, band_eighths
from attention_plasticity.metrics import BAND_QUANTITY, GROUP_COLUMNS, UNTURNED_QUANTITY
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import HeadColumn
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.arrays import Array

BAND_COLUMNS = ("run", "minus", "layer_type", "eighth", "shortest", "longest", *MEAN_COLUMNS)
NOT_TURNED = "not turned"
_ROUNDING = 1e-6  # a smaller share of the dimensions that do not turn is a rounding error
_ERRORS = [*GROUP_COLUMNS, "n_groups"]


def band_table(runs: Sequence[ComparedRun], pairs: Sequence[Pair]) -> pd.DataFrame:
    """One row per run, type of layers and eighth of the bands, and per pair; empty without bands.

    `shortest` and `longest` are the wavelengths of an eighth in these layers, in tokens.
    """
    with_bands = [run for run in runs if run.run.has("bands")]
    both = [pair for pair in pairs if pair.run.run.has("bands") and pair.minus.run.has("bands")]
    waves = {
        (run.label, name): _wavelengths(part.table("bands"))
        for run in with_bands
        for name, part in run.parts.items()
    }
    rows = []
    for label, minus, layer_type, number, numbers in mean_rows(_columns, with_bands, both):
        wave = waves[label, layer_type].reindex([number]).to_numpy(np.float64)[0]  # (2,)
        words = NOT_TURNED if number == UNTURNED else str(number + 1)
        rows.append((label, minus, layer_type, words, *wave.tolist(), *numbers))
    return pd.DataFrame(rows, columns=list(BAND_COLUMNS))


def _wavelengths(bands: pd.DataFrame) -> pd.DataFrame:
    """The shortest and the longest wavelength of every eighth."""
    return _numbered(bands).groupby("eighth")["wavelength"].agg(["min", "max"])


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


def _columns(run: FinishedRun) -> dict[int, HeadColumn]:
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
    found = {}
    numbers = sorted(shares.columns.astype(int).tolist(), key=lambda one: (one == UNTURNED, one))
    for number in numbers:
        values = shares[number].to_numpy(np.float64)
        known = _of_eighth(influences, number, shares.index, groups)  # (heads, g)
        found[number] = HeadColumn(heads, values, known, groups, run.eligible_heads)
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
