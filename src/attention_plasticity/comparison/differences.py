"""Differences between runs, with standard errors.

Two runs on the same texts are compared text by text: the influences of each group of texts are
subtracted. What the texts change in both runs then cancels. For other runs, the errors are added as
those of independent samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attention_plasticity.comparison.cautions import same_texts
from attention_plasticity.comparison.runs import ALL_LAYERS, ComparedRun, Means, unequal
from attention_plasticity.metrics import MEAN_COLUMNS
from attention_plasticity.tables.intervals import half_width


@dataclass(frozen=True)
class Difference:
    """The difference of a mean over heads between a run and the first run."""

    run: str
    minus: str
    layer_type: str  # of the heads in both runs, or `all`
    quantity: str
    difference: float
    standard_error: float
    low: float  # of the 95 % interval
    high: float
    paired: bool
    equal_contexts: bool


def run_differences(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """Every run minus the first run, for each mean of `MEAN_COLUMNS`.

    If one of two runs has several types of layers, there are also rows for each type that both
    have. Only means are subtracted, so the runs can have different numbers of layers and heads.
    """
    rows = [row for run in runs[1:] for row in _differences(run, runs[0])]
    return pd.DataFrame(rows, columns=list(Difference.__dataclass_fields__))


def _differences(run: ComparedRun, first: ComparedRun) -> Iterator[Difference]:
    same = (same_texts(run, first), not unequal([run.context, first.context]))
    types = [name for name in run.layers if name in first.layers]
    if len(run.layers) == len(first.layers) == 1:
        types = []
    for layer_type in (ALL_LAYERS, *types):
        one, other = run.means_of(layer_type), first.means_of(layer_type)
        if one is not None and other is not None:
            for name in MEAN_COLUMNS:
                numbers = _difference(one, other, name, paired=same[0])
                yield Difference(run.label, first.label, layer_type, name, *numbers, *same)


def _difference(
    run: Means, first: Means, name: str, *, paired: bool
) -> tuple[float, float, float, float]:
    """Difference, standard error, and both ends of the interval."""
    if not (name in run.of and name in first.of):
        return (math.nan,) * 4
    one, other = run.of[name], first.of[name]
    value = one.value - other.value
    if paired:
        groups = np.subtract(one.influences, other.influences)
        error = float(np.sqrt(groups @ groups))
    else:
        error = math.hypot(one.standard_error, other.standard_error)
    reach = float(half_width(error, min(one.freedom, other.freedom) + 1.0))
    return value, error, value - reach, value + reach
