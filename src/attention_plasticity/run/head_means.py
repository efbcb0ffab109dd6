"""Means over the heads of a run, with standard errors. Plain Python, without numeric libraries.

All heads are measured on the same texts. So the influences of the groups of texts are averaged over
heads first; the standard error of the mean follows from these averages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import AVERAGED, GROUP_COLUMNS

LARGE_GAP = 0.02  # of Gaussian and counted plasticity


def gap_is_large(row: Mapping[Any, Any]) -> bool:
    """Whether |gap| > max(0.02, 2 standard errors) in a row of the table of heads."""
    gap, error = row["ap_gaussian_gap"], row["ap_gaussian_gap_se"]
    return bool(abs(gap) > LARGE_GAP and abs(gap) > 2.0 * error)  # false for NaN


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over heads."""

    value: float  # corrected for bias, if the bias of all heads is known
    standard_error: float  # NaN if it is not known for all heads
    heads: int
    corrected: bool
    groups: int  # of texts behind the value, the fewest of a head; 0 if they are not known
    influences: tuple[float, ...] = field(repr=False)  # (g,) of the groups of texts

    @property
    def freedom(self) -> float:
        """Degrees of freedom of its interval; NaN if they are not known."""
        return self.groups - 1.0 if self.groups else math.nan


def mean_estimate(
    values: Sequence[float],
    biases: Sequence[float],
    influences: Sequence[Sequence[float]],
    groups: Sequence[float],
) -> MeanEstimate:
    """Mean over the heads with a value. `influences` has one sequence of 16 numbers per head.

    `groups` are the numbers of groups of texts behind the values, NaN or 0 if not known.
    """
    used = [number for number, value in enumerate(values) if not math.isnan(value)]
    if not used:
        return MeanEstimate(math.nan, math.nan, 0, False, 0, (math.nan,) * len(GROUP_COLUMNS))
    count = len(used)
    value = math.fsum(values[number] for number in used) / count
    bias = math.fsum(biases[number] for number in used) / count
    shares = tuple(
        math.fsum(influences[number][group] for number in used) / count
        for group in range(len(GROUP_COLUMNS))
    )
    error = math.sqrt(math.fsum(share**2 for share in shares))
    corrected = not math.isnan(bias)
    known = [groups[number] for number in used]
    fewest = 0 if any(map(math.isnan, known)) else int(min(known))
    value = value - bias if corrected else value
    return MeanEstimate(value, error, count, corrected, fewest, shares)


class HeadMeans:
    """Collects the means of heads while their tables are written."""

    def __init__(self) -> None:
        self._types: list[str] = []
        self._values: dict[str, list[float]] = {name: [] for name in AVERAGED}
        self._biases: dict[str, list[float]] = {name: [] for name in AVERAGED}
        self._influences: dict[str, list[Sequence[float]]] = {name: [] for name in AVERAGED}
        self._groups: dict[str, list[int]] = {name: [] for name in AVERAGED}

    @cached_property
    def estimates(self) -> dict[str, MeanEstimate]:
        """The means over the collected heads."""
        return self._estimates(range(len(self._types)))

    @cached_property
    def by_layer_type(self) -> dict[str, dict[str, MeanEstimate]]:
        """The same for the layers of each type."""
        heads: dict[str, list[int]] = {}
        for number, layer_type in enumerate(self._types):
            heads.setdefault(layer_type, []).append(number)
        return {layer_type: self._estimates(numbers) for layer_type, numbers in heads.items()}

    def _estimates(self, heads: Sequence[int]) -> dict[str, MeanEstimate]:
        return {
            name: mean_estimate(
                [self._values[name][number] for number in heads],
                [self._biases[name][number] for number in heads],
                [self._influences[name][number] for number in heads],
                [self._groups[name][number] for number in heads],
            )
            for name in AVERAGED
        }

    def add(self, result: HeadResult) -> None:
        """Add the values of a head."""
        self._types.append(result.metrics["layer_type"])
        unknown = (math.nan,) * len(GROUP_COLUMNS)
        columns = result.influences
        rows = zip(*(columns[name] for name in GROUP_COLUMNS), strict=True) if columns else ()
        quantities = columns.get("quantity", ())
        influences = dict(zip(quantities, rows, strict=False))
        groups = dict(zip(quantities, columns.get("n_groups", ()), strict=True))
        for name in AVERAGED:
            self._values[name].append(result.metrics[name])
            self._biases[name].append(result.metrics.get(f"{name}_bias", 0.0))
            self._influences[name].append(influences.get(name, unknown))
            self._groups[name].append(groups.get(name, 0))
