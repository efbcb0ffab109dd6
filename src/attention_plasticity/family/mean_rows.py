"""Means over heads of quantities of several models, and differences of pairs of models.

On the same texts the influences of each group of texts are subtracted, so that a difference has the
error of its texts alone. Otherwise two models are independent samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.matched import Pair
from attention_plasticity.run.head_means import MeanEstimate
from attention_plasticity.tables.intervals import HeadColumn, at_common_heads, mean_half_width

MEAN_COLUMNS = ("mean", "standard_error", "low", "high", "degrees_of_freedom", "heads")


def mean_rows(
    columns: Mapping[str, Mapping[Any, HeadColumn]],
    runs: Sequence[ComparedRun],
    pairs: Sequence[Pair],
) -> Iterator[tuple[str, str, Any, tuple[Any, ...]]]:
    """Rows of every run, then of every pair: run, the run that is subtracted, quantity, numbers.

    `columns` has for the label of a run its quantities, each with the values of the heads. The run
    that is subtracted is an empty text in the rows of means.
    """
    for run in runs:
        for quantity, column in columns.get(run.label, {}).items():
            yield run.label, "", quantity, _numbers(column.mean)
    for pair in pairs:
        own, other = (columns.get(one.label, {}) for one in (pair.run, pair.minus))
        for quantity in own:
            if quantity in other:
                both = at_common_heads(own[quantity], other[quantity])
                difference = both[0].minus(both[1], paired=pair.paired)
                yield pair.run.label, pair.minus.label, quantity, _numbers(difference)


def _numbers(mean: MeanEstimate) -> tuple[Any, ...]:
    """The values of `MEAN_COLUMNS`."""
    reach = mean_half_width(mean)
    ends = (mean.value - reach, mean.value + reach)
    return mean.value, mean.standard_error, *ends, mean.freedom, mean.heads
