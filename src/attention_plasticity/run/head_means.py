"""Means over the heads of a run, with standard errors. Plain Python, without numeric libraries.

All heads are measured on the same texts. So the influences of the groups of texts are averaged over
heads first; the standard error of the mean follows from these averages. If the heads are a random
sample of the heads of a model, their choice adds to the error.

Whether the heads of a run are a random sample, and of how many heads. A capture with
`head_sampling` draws query heads at random. The mean over them estimates the mean over all eligible
heads, so its error has a part from the choice of heads. Heads that a person chose are fixed: their
mean is about these heads only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import AVERAGED, FULL_ATTENTION, GROUP_COLUMNS
from qk_toolkit.formatting import count

LARGE_GAP = 0.02  # of Gaussian and counted plasticity
_CHOICES = ("layers", "heads")  # settings of an analysis that choose heads


def gap_is_large(row: Mapping[Any, Any]) -> bool:
    """Whether |gap| > max(0.02, 2 standard errors) in a row of the table of heads."""
    gap, error = row["ap_gaussian_gap"], row["ap_gaussian_gap_se"]
    return bool(abs(gap) > LARGE_GAP and abs(gap) > 2.0 * error)  # false for NaN


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over heads."""

    value: float  # corrected for bias, if the bias of all heads is known
    text_error: float  # standard error over texts; NaN if it is not known for all heads
    heads: int
    corrected: bool
    groups: int  # of texts behind the value, the fewest of a head; 0 if they are not known
    influences: tuple[float, ...] = field(repr=False)  # (g,) of the groups of texts
    eligible: int | None = None  # heads from which the heads were sampled; None: heads are fixed
    head_variance: float = 0.0  # squared error from the choice of heads

    @property
    def standard_error(self) -> float:
        """Its error over texts and, if the heads are a random sample, over heads."""
        if self.eligible is None:
            return self.text_error
        return math.sqrt(self.text_error**2 + self.head_variance)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of its interval; NaN if they are not known."""
        fewest = self.groups if self.eligible is None else min(self.groups, self.heads)
        return fewest - 1.0 if self.groups else math.nan

    @property
    def over(self) -> str:
        """`6 heads`, or `6 of 270 heads, sampled at random`."""
        if self.eligible is None:
            return count(self.heads, "head")
        return f"{self.heads:,} of {count(self.eligible, 'head')}, sampled at random"


def mean_estimate(
    values: Sequence[float],
    biases: Sequence[float],
    influences: Sequence[Sequence[float]],
    groups: Sequence[float],
    eligible: int | None = None,
) -> MeanEstimate:
    """Mean over the heads with a value. `influences` has one sequence of 16 numbers per head.

    `groups` are the numbers of groups of texts behind the values, NaN or 0 if not known. `eligible`
    is the number of heads from which the heads were sampled at random; None if they are fixed.
    """
    used = [number for number, value in enumerate(values) if not math.isnan(value)]
    if not used:
        unknown = (math.nan,) * len(GROUP_COLUMNS)
        return MeanEstimate(math.nan, math.nan, 0, False, 0, unknown, eligible, math.nan)
    heads = len(used)
    bias = math.fsum(biases[number] for number in used) / heads
    corrected = not math.isnan(bias)
    found = [values[number] - (biases[number] if corrected else 0.0) for number in used]
    own = [influences[number] for number in used]
    shares = tuple(math.fsum(group) / heads for group in zip(*own, strict=True))
    error = math.sqrt(_squares(shares))
    known = [groups[number] for number in used]
    fewest = 0 if any(map(math.isnan, known)) else int(min(known))
    variance = 0.0 if eligible is None else _head_variance(found, own, error**2, eligible)
    value = math.fsum(found) / heads
    return MeanEstimate(value, error, heads, corrected, fewest, shares, eligible, variance)


def _head_variance(
    values: Sequence[float],
    influences: Sequence[Sequence[float]],
    text_variance: float,
    eligible: int,
) -> float:
    """Squared error of a mean from the choice of its heads; NaN for one head.

    The variance over heads contains errors over texts. What all heads have in common of these does
    not vary over heads, so only the rest is subtracted.
    """
    heads = len(values)
    if heads < 2:
        return math.nan
    mean = math.fsum(values) / heads
    spread = math.fsum((value - mean) ** 2 for value in values) / (heads - 1)
    of_texts = math.fsum(map(_squares, influences)) / heads
    between = spread - of_texts + text_variance
    left = max(0.0, 1.0 - heads / eligible)  # share of the heads that are not in the mean
    return between if math.isnan(between) else left * max(0.0, between) / heads


def _squares(numbers: Sequence[float]) -> float:
    return math.fsum(number**2 for number in numbers)


class HeadMeans:
    """Collects the means of heads while their tables are written."""

    def __init__(self, eligible: EligibleHeads | None = None) -> None:
        self.eligible = eligible
        self._types: list[str] = []
        self._values: dict[str, list[float]] = {name: [] for name in AVERAGED}
        self._biases: dict[str, list[float]] = {name: [] for name in AVERAGED}
        self._influences: dict[str, list[Sequence[float]]] = {name: [] for name in AVERAGED}
        self._groups: dict[str, list[int]] = {name: [] for name in AVERAGED}

    @cached_property
    def estimates(self) -> dict[str, MeanEstimate]:
        """The means over the collected heads."""
        total = None if self.eligible is None else self.eligible.total
        return self._estimates(range(len(self._types)), total)

    @cached_property
    def by_layer_type(self) -> dict[str, dict[str, MeanEstimate]]:
        """The same for the layers of each type."""
        heads: dict[str, list[int]] = {}
        for number, layer_type in enumerate(self._types):
            heads.setdefault(layer_type, []).append(number)
        found = {}
        for layer_type, numbers in heads.items():
            total = None if self.eligible is None else self.eligible.of_types([layer_type])
            found[layer_type] = self._estimates(numbers, total)
        return found

    def _estimates(self, heads: Sequence[int], eligible: int | None) -> dict[str, MeanEstimate]:
        return {
            name: mean_estimate(
                [self._values[name][number] for number in heads],
                [self._biases[name][number] for number in heads],
                [self._influences[name][number] for number in heads],
                [self._groups[name][number] for number in heads],
                eligible,
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


@dataclass(frozen=True)
class EligibleHeads:
    """Numbers of query heads from which the heads of a run were sampled at random."""

    total: int
    by_layer_type: Mapping[str, int]

    def of_types(self, layer_types: Iterable[str]) -> int:
        """The eligible heads in layers of some types; all of them if a type is not known."""
        types = set(layer_types)
        if not types <= self.by_layer_type.keys():
            return self.total
        return sum(self.by_layer_type[layer_type] for layer_type in types)


def eligible_heads(dump: Mapping[str, Any], config: Mapping[str, Any]) -> EligibleHeads | None:
    """The heads from which those of a run were sampled; None if its heads are fixed.

    `dump` is the content of dump.json, `config` has the settings of the analysis. Heads are fixed
    if all eligible heads were captured, or if layers or heads were chosen in the analysis.
    """
    capture = _mapping(_mapping(dump.get("capture")).get("capture"))
    count = _mapping(capture.get("head_sampling")).get("count")
    chosen = any(config.get(name) is not None for name in _CHOICES) or _fewer_layers(dump, config)
    if not isinstance(count, int) or chosen:
        return None
    by_type = _by_layer_type(dump, capture)
    total = dump.get("eligible_q_heads") or sum(by_type.values())
    if count >= total:
        return None
    return EligibleHeads(total, by_type if sum(by_type.values()) == total else {})


def _fewer_layers(dump: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether `num_layers` of the analysis leaves layers of the dump out."""
    wanted, captured = config.get("num_layers"), dump.get("num_layers")
    return isinstance(wanted, int) and isinstance(captured, int) and wanted < captured


def _by_layer_type(dump: Mapping[str, Any], capture: Mapping[str, Any]) -> dict[str, int]:
    """Eligible query heads of each type of layer; earlier dumps have no total number."""
    chosen, heads = capture.get("layers"), capture.get("heads")
    per_layer = len(set(heads)) if isinstance(heads, list) else dump.get("num_q_heads") or 0
    found: Counter[str] = Counter()
    for entry in dump.get("layers") or []:
        full = entry.get("type") == FULL_ATTENTION and not entry.get("selective")
        left_out = capture.get("full_attention_only") is True and not full
        if not left_out and (chosen is None or entry.get("layer") in chosen):
            found[str(entry.get("type"))] += per_layer
    return dict(found)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
