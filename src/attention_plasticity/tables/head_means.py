"""Means over heads, with their errors.

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
from typing import Any

import numpy as np

from attention_plasticity.metrics import FULL_ATTENTION, GROUP_COLUMNS
from attention_plasticity.tables.layer_types import recorded_layers
from qk_toolkit.arrays import Array
from qk_toolkit.formatting import count

_UNKNOWN = (math.nan,) * len(GROUP_COLUMNS)  # influences


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over heads."""

    value: float
    text_error: float  # standard error over texts; NaN if it is not known for all heads
    heads: int
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
    values: Sequence[float] | Array,
    influences: Sequence[Sequence[float]] | Array,
    groups: Sequence[float] | Array,
    eligible: int | None = None,
) -> MeanEstimate:
    """Mean over the heads with a value. `influences` has 16 numbers per head.

    `groups` are the numbers of groups of texts behind the values, NaN or 0 if not known. `eligible`
    is the number of heads from which the heads were sampled at random; None if they are fixed.
    """
    all_values = np.asarray(values, np.float64)  # (heads,)
    used = np.flatnonzero(~np.isnan(all_values))
    if not len(used):
        return MeanEstimate(math.nan, math.nan, 0, 0, _UNKNOWN, eligible, math.nan)
    found = all_values[used]
    own = np.asarray(influences, np.float64).reshape(len(all_values), -1)[used]  # (heads, g)
    shares = own.mean(axis=0)
    error = float(np.linalg.norm(shares))
    known = np.asarray(groups, np.float64)[used]
    fewest = 0 if np.isnan(known).any() else int(known.min())
    variance = 0.0 if eligible is None else _head_variance(found, own, error**2, eligible)
    numbers = tuple(shares.tolist())
    return MeanEstimate(float(found.mean()), error, len(used), fewest, numbers, eligible, variance)


def _head_variance(values: Array, influences: Array, text_variance: float, eligible: int) -> float:
    """Squared error of a mean from the choice of its heads; NaN for one head.

    The variance over heads contains errors over texts. What all heads have in common of these does
    not vary over heads, so only the rest is subtracted.
    """
    heads = len(values)
    if heads < 2:
        return math.nan
    of_texts = float((influences**2).sum(axis=1).mean())
    between = float(values.var(ddof=1)) - of_texts + text_variance
    left = max(0.0, 1.0 - heads / eligible)  # share of the heads that are not in the mean
    return between if math.isnan(between) else left * max(0.0, between) / heads


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


def eligible_heads(dump: Mapping[str, Any], *, all_heads: bool) -> EligibleHeads | None:
    """The heads from which those of a run were sampled; None if its heads are fixed.

    `dump` is the content of dump.json. `all_heads`: every captured head was analysed, or failed;
    otherwise a person chose some of them. Heads are also fixed if all eligible heads were captured.
    """
    capture = _mapping(_mapping(dump.get("capture")).get("capture"))
    count = _mapping(capture.get("head_sampling")).get("count")
    if not isinstance(count, int) or not all_heads:
        return None
    by_type = _by_layer_type(dump, capture)
    total = dump.get("eligible_q_heads") or sum(by_type.values())
    if count >= total:
        return None
    return EligibleHeads(total, by_type if sum(by_type.values()) == total else {})


def _by_layer_type(dump: Mapping[str, Any], capture: Mapping[str, Any]) -> dict[str, int]:
    """Eligible query heads of each type of layer; earlier dumps have no total number."""
    chosen, heads = capture.get("layers"), capture.get("heads")
    per_layer = len(set(heads)) if isinstance(heads, list) else dump.get("num_q_heads") or 0
    found: Counter[str] = Counter()
    for record in recorded_layers(dump):
        full = record.type == FULL_ATTENTION and not record.selective
        left_out = capture.get("full_attention_only") is True and not full
        if not left_out and (chosen is None or record.layer in chosen):
            found[str(record.type)] += per_layer
    return dict(found)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
