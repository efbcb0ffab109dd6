"""Differences between runs, with standard errors.

Two runs on the same texts are compared text by text: the influences of each group of texts are
subtracted. What the texts change in both runs then cancels. For other runs, the errors are added as
those of independent samples.

If heads were sampled at random, their choice adds to the error: that of the differences of heads if
both runs have the same heads of one architecture, otherwise that of each run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attention_plasticity.comparison.cautions import same_texts
from attention_plasticity.comparison.heads import same_architecture
from attention_plasticity.comparison.runs import ALL_LAYERS, COMPARED, ComparedRun, unequal
from attention_plasticity.tables.intervals import HeadColumn, half_width
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION


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
    same_heads: bool
    heads: int  # with a value in the run
    minus_heads: int  # in the first run


def run_differences(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """Every run minus the first run, for each mean of `COMPARED`.

    Plasticity at one position comes first; it is left out if neither run has it.
    If one of two runs has several types of layers, there are also rows for each type that both
    have. Only means are subtracted, so the runs can have different numbers of layers and heads.
    """
    rows = [row for run in runs[1:] for row in _differences(run, runs[0])]
    return pd.DataFrame(rows, columns=list(Difference.__dataclass_fields__))


def _differences(run: ComparedRun, first: ComparedRun) -> Iterator[Difference]:
    paired = same_texts(run, first)
    same_contexts = not unequal([run.context, first.context])
    types = [name for name in run.layers if name in first.layers]
    if len(run.layers) == len(first.layers) == 1:
        types = []
    for layer_type in (ALL_LAYERS, *types):
        one, other = run.means_of(layer_type), first.means_of(layer_type)
        if one is None or other is None:
            continue
        for name in COMPARED:
            columns = one.columns.get(name), other.columns.get(name)
            if name in AT_ONE_POSITION.all and not any(map(_has_values, columns)):
                continue
            same_heads = same_architecture(run, first) and _have_same_heads(*columns)
            numbers = difference(*columns, paired=paired, same_heads=same_heads)
            heads = [0 if column is None else len(column.heads) for column in columns]
            labels = (run.label, first.label, layer_type, name)
            yield Difference(*labels, *numbers, paired, same_contexts, same_heads, *heads)


def _has_values(column: HeadColumn | None) -> bool:
    return column is not None and len(column.heads) > 0


def _have_same_heads(one: HeadColumn | None, other: HeadColumn | None) -> bool:
    return one is not None and other is not None and one.heads == other.heads


def difference(
    run: HeadColumn | None, first: HeadColumn | None, *, paired: bool, same_heads: bool
) -> tuple[float, float, float, float]:
    """Difference, standard error, and both ends of the interval."""
    if run is None or first is None:
        return (math.nan,) * 4
    if same_heads:
        mean = run.minus(first, paired=paired)
        value, error, freedom = mean.value, mean.standard_error, mean.freedom
    else:
        one, other = run.mean, first.mean
        value, freedom = one.value - other.value, min(one.freedom, other.freedom)
        error = math.hypot(one.text_error, other.text_error)
        if paired:
            error = float(np.linalg.norm(np.subtract(one.influences, other.influences)))
        error = math.sqrt(error**2 + one.head_variance + other.head_variance)
    reach = float(half_width(error, freedom + 1.0))
    return value, error, value - reach, value + reach
