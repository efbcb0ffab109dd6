"""Which rotary bands make the logits of each model differ: shares of the variance of the logit.

The shares are summed over eighths of the bands of a head, from the fastest to the slowest, and
averaged over heads. They sum to 1 with the share of the dimensions that RoPE does not turn. An
eighth has the same dimensions in two models of one architecture, also if RoPE is scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.matched import Pair
from attention_plasticity.family.mean_rows import MEAN_COLUMNS, mean_rows
from attention_plasticity.metrics import BAND_QUANTITY, GROUP_COLUMNS, UNTURNED_QUANTITY
from attention_plasticity.numeric.bands import UNTURNED, band_eighths
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import HeadColumn
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.arrays import Array

BAND_COLUMNS = ("run", "minus", "eighth", "shortest", "longest", *MEAN_COLUMNS)
NOT_TURNED = "not turned"
_ROUNDING = 1e-6  # a smaller share of the dimensions that do not turn is a rounding error
_ERRORS = [*GROUP_COLUMNS, "n_groups"]


def band_table(runs: Sequence[ComparedRun], pairs: Sequence[Pair]) -> pd.DataFrame:
    """One row per run and eighth of the bands, and per pair of runs; empty without bands.

    `shortest` and `longest` are the wavelengths of an eighth in the run, in tokens.
    """
    with_bands = {run.label: run.run for run in runs if run.run.has_bands}
    numbered = {label: _numbered(run.bands) for label, run in with_bands.items()}
    columns = {label: _columns(run, numbered[label]) for label, run in with_bands.items()}
    waves = {label: own.groupby("eighth")["wavelength"] for label, own in numbered.items()}
    ends = {label: own.agg(["min", "max"]) for label, own in waves.items()}
    rows = []
    for label, minus, number, numbers in mean_rows(columns, runs, pairs):
        wave = ends[label].reindex([number]).to_numpy(np.float64)[0]  # (2,)
        words = NOT_TURNED if number == UNTURNED else str(number + 1)
        rows.append((label, minus, words, *wave.tolist(), *numbers))
    return pd.DataFrame(rows, columns=list(BAND_COLUMNS))


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


def _columns(run: FinishedRun, bands: pd.DataFrame) -> dict[int, HeadColumn]:
    """Shares of every head by eighth, with influences if the run has them."""
    shares = bands.pivot_table(
        "variance_share", index=list(HEAD), columns="eighth", aggfunc="sum", fill_value=0.0
    )  # (heads, eighths)
    rest = 1.0 - shares.sum(axis=1)
    if (rest.abs() > _ROUNDING).any():
        shares[UNTURNED] = shares.get(UNTURNED, 0.0) + rest
    influences = _influences(run.influences)
    heads = tuple((int(layer), int(head)) for layer, head in shares.index)
    found = {}
    numbers = sorted(shares.columns.astype(int).tolist(), key=lambda one: (one == UNTURNED, one))
    for number in numbers:
        known = _of_eighth(influences, number, shares.index)  # (heads, groups + 1)
        values = shares[number].to_numpy(np.float64)  # (heads,)
        unknown = np.full(len(heads), np.nan)
        found[number] = HeadColumn(
            heads, values, unknown, known[:, :-1], known[:, -1], run.eligible_heads
        )
    return found


def _influences(table: pd.DataFrame | None) -> Mapping[int, pd.DataFrame]:
    """The influences on the shares by eighth, with heads as index."""
    if table is None:
        return {}
    rows = table[table["quantity"].isin([BAND_QUANTITY, UNTURNED_QUANTITY])]
    numbers = rows["q_bucket"].where(rows["quantity"] == BAND_QUANTITY, UNTURNED).astype(np.int64)
    return {
        number: rows[(numbers == number).to_numpy()].set_index(list(HEAD))[_ERRORS]
        for number in set(numbers.tolist())
    }


def _of_eighth(
    influences: Mapping[int, pd.DataFrame], number: int, heads: pd.MultiIndex | pd.Index
) -> Array:
    """(heads, groups + 1) influences and numbers of groups; NaN if they are not known.

    A head without a band of this eighth has no influence on its share, which is 0.
    """
    if not influences:
        return np.full((len(heads), len(_ERRORS)), np.nan)
    groups = pd.concat(influences.values()).groupby(level=[0, 1])["n_groups"].max().reindex(heads)
    own = influences.get(number, next(iter(influences.values())).iloc[:0]).reindex(heads)
    absent = own["n_groups"].isna() & groups.notna()
    own.loc[absent, list(GROUP_COLUMNS)] = 0.0
    own["n_groups"] = groups
    return own.to_numpy(np.float64)
