"""Means over heads of quantities of several models, and differences of pairs of models.

On the same texts the influences of each group of texts are subtracted, so that a difference has the
error of its texts alone. Otherwise two models are independent samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attention_plasticity.comparison.runs import ComparedRun
from attention_plasticity.family.matched import Pair
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_means import MeanEstimate
from attention_plasticity.tables.intervals import HeadColumn, at_common_heads, mean_numbers

MEAN_COLUMNS = ("mean", "standard_error", "low", "high", "degrees_of_freedom", "heads")


def mean_rows(
    columns_of: Callable[[FinishedRun], Mapping[Any, HeadColumn]],
    runs: Sequence[ComparedRun],
    pairs: Sequence[Pair],
) -> Iterator[tuple[str, str, str, Any, tuple[Any, ...]]]:
    """Rows of every run, then of every pair: run, other run, type of layers, quantity, numbers.

    `columns_of` gives the quantities of a run, each with the values of its heads. The other run is
    the one that is subtracted; it is an empty text in the rows of means. A run with several types
    of layers also has rows for each type.
    """
    columns = {
        (run.label, name): columns_of(part) for run in runs for name, part in run.parts.items()
    }
    for run in runs:
        for name in run.parts:
            for quantity, column in columns[run.label, name].items():
                yield run.label, "", name, quantity, _numbers(column.mean)
    for pair in pairs:
        for name in pair.run.parts:
            own = columns[pair.run.label, name]
            other = columns.get((pair.minus.label, name), {})
            for quantity in own:
                if quantity in other:
                    both = at_common_heads(own[quantity], other[quantity])
                    difference = both[0].minus(both[1], paired=pair.paired)
                    yield pair.run.label, pair.minus.label, name, quantity, _numbers(difference)


def _numbers(mean: MeanEstimate) -> tuple[Any, ...]:
    """The values of `MEAN_COLUMNS`."""
    return *mean_numbers(mean), mean.freedom, mean.heads
