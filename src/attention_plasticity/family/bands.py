"""Which wavelengths of RoPE make the logits of each model differ: shares of rotary bands.

The shares of the variance of the logit are summed over the bands of one class of wavelengths, and
averaged over heads. They sum to 1 with the share of the dimensions that RoPE does not turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.matched import Pair
from attention_plasticity.family.mean_rows import MEAN_COLUMNS, mean_rows
from attention_plasticity.metrics import BAND_QUANTITY, GROUP_COLUMNS, UNTURNED_QUANTITY
from attention_plasticity.numeric.bands import UNTURNED, wavelength_classes
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import HeadColumn
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.arrays import Array

BAND_COLUMNS = ("run", "minus", "wavelength", "start", "end", *MEAN_COLUMNS)
NOT_TURNED = "not turned"
_ROUNDING = 1e-6  # a smaller share of the dimensions that do not turn is a rounding error
_ERRORS = [*GROUP_COLUMNS, "n_groups"]


def band_table(runs: Sequence[ComparedRun], pairs: Sequence[Pair]) -> pd.DataFrame:
    """One row per run and class of wavelengths, and per pair of runs; empty without bands.

    A model without bands of a class that another model has has the share 0 there.
    """
    columns = {run.label: band_columns(run.run) for run in runs if run.run.has_bands}
    numbers_of_all = sorted({number for own in columns.values() for number in own}, key=_place)
    for label, own in columns.items():
        columns[label] = {number: own.get(number, _nothing(own)) for number in numbers_of_all}
    rows = []
    for label, minus, number, numbers in mean_rows(columns, runs, pairs):
        start, end = (np.nan, np.nan) if number == UNTURNED else (4.0**number, 4.0 ** (number + 1))
        rows.append((label, minus, wavelength_words(number), start, end, *numbers))
    return pd.DataFrame(rows, columns=list(BAND_COLUMNS))


def _place(number: int) -> tuple[bool, int]:
    """The order of classes: by wavelength, and last what does not turn."""
    return number == UNTURNED, number


def _nothing(own: Mapping[int, HeadColumn]) -> HeadColumn:
    """Shares of a class without bands."""
    some = next(iter(own.values()))
    known = np.where(np.isnan(some.influences), np.nan, 0.0)  # (heads, groups)
    return replace(some, values=np.zeros(len(some.heads)), influences=known)


def band_columns(run: FinishedRun) -> dict[int, HeadColumn]:
    """Shares of every head by class of wavelengths, with influences if the run has them.

    The class of dimensions that do not turn is there only if the run has such dimensions.
    """
    shares = _shares(run.bands)
    influences = _influences(run.influences)
    heads = tuple((int(layer), int(head)) for layer, head in shares.index)
    found = {}
    for number in sorted(shares.columns.astype(int).tolist(), key=_place):
        known = _of_class(influences, number, shares.index)  # (heads, groups + 1)
        values = shares[number].to_numpy(np.float64)  # (heads,)
        unknown = np.full(len(heads), np.nan)
        found[number] = HeadColumn(
            heads, values, unknown, known[:, :-1], known[:, -1], run.eligible_heads
        )
    return found


def _shares(bands: pd.DataFrame) -> pd.DataFrame:
    """(heads, classes) shares of the variance; heads without known shares are left out."""
    known = bands[bands["variance_share"].notna()]
    classes = wavelength_classes(known["wavelength"].to_numpy(np.float64))  # (rows,)
    table = known.assign(number=classes).pivot_table(
        "variance_share", index=list(HEAD), columns="number", aggfunc="sum", fill_value=0.0
    )
    rest = 1.0 - table.sum(axis=1)
    if (rest.abs() > _ROUNDING).any():
        table[UNTURNED] = table.get(UNTURNED, 0.0) + rest
    return table


def _influences(table: pd.DataFrame | None) -> Mapping[int, pd.DataFrame]:
    """The influences on the shares by class of wavelengths, with heads as index."""
    if table is None:
        return {}
    rows = table[table["quantity"].isin([BAND_QUANTITY, UNTURNED_QUANTITY])]
    numbers = rows["q_bucket"].where(rows["quantity"] == BAND_QUANTITY, UNTURNED).astype(np.int64)
    return {
        number: rows[(numbers == number).to_numpy()].set_index(list(HEAD))[_ERRORS]
        for number in set(numbers.tolist())
    }


def _of_class(
    influences: Mapping[int, pd.DataFrame], number: int, heads: pd.MultiIndex | pd.Index
) -> Array:
    """(heads, groups + 1) influences and numbers of groups; NaN if they are not known.

    A head without a band of this class has no influence on its share, which is 0.
    """
    if not influences:
        return np.full((len(heads), len(_ERRORS)), np.nan)
    groups = pd.concat(influences.values()).groupby(level=[0, 1])["n_groups"].max().reindex(heads)
    own = influences.get(number, next(iter(influences.values())).iloc[:0]).reindex(heads)
    absent = own["n_groups"].isna() & groups.notna()
    own.loc[absent, list(GROUP_COLUMNS)] = 0.0
    own["n_groups"] = groups
    return own.to_numpy(np.float64)


def wavelength_words(number: int) -> str:
    """`256–1K`: the wavelengths of a class in tokens; K is 1,024."""
    return NOT_TURNED if number == UNTURNED else f"{_tokens(number)}–{_tokens(number + 1)}"


def _tokens(power: int) -> str:
    """4 to a power, as `64`, `16K` or `1M`."""
    for unit, size in (("M", 10), ("K", 5)):
        if power >= size:
            return f"{4 ** (power - size):,}{unit}"
    return str(4**power)
