"""Expected queries and texts of every bucket, from the lengths of the texts.

The sampler `auto`: buckets and rates from the number of texts and the length of the first ones. The
analysis needs 32 queries per bucket, from several texts. `auto` gives about 128 of them where texts
are few, and one per text and bucket where they are many. Keys get four times as many, because the
error of a head comes mostly from keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qk_dump.positions import BucketGeometry
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.arrays import Array, Ints
from qk_toolkit.formatting import count, index_runs

LEAST_QUERIES = 32
LEAST_TEXTS = 4

TEXTS_LOOKED_AT = 16
_BUCKETS = 16  # of the longest text that was looked at, or somewhat fewer or more
_LEAST_POSITIONS = 64  # of all texts in a bucket
_QUERIES_PER_BUCKET = 128  # from all texts
_KEYS_PER_QUERY = 4


@dataclass(frozen=True)
class BucketCounts:
    """The buckets that texts reach, with what is expected in each of them."""

    first: Ints  # (b,) first position
    last: Ints  # (b,) last position that a text has
    rate: Array  # (b,) probability that a position is kept
    queries: Array  # (b,) expected number
    texts: Array  # (b,) expected number of texts with a query

    def warning(self) -> str | None:
        """A message about buckets with too few queries or texts; None if there are none."""
        few_queries = np.round(self.queries) < LEAST_QUERIES  # (b,)
        few_texts = np.round(self.texts) < LEAST_TEXTS  # (b,)
        found = [
            f"fewer than {least} {name} in {self._where(few)}"
            for least, name, few in (
                (LEAST_QUERIES, "queries", few_queries),
                (LEAST_TEXTS, "texts", few_texts),
            )
            if few.any()
        ]
        if not found:
            return None
        return (
            f"expected per head: {' and '.join(found)}. Plasticity there is biased or depends on "
            f"single texts. {self._remedy(few_queries, few_texts)}"
        )

    def _where(self, few: npt.NDArray[np.bool_]) -> str:
        """`3 of 16 buckets (positions 0-511, 1,024-1,535)`."""
        runs = index_runs(np.flatnonzero(few).tolist())
        shown = [f"{self.first[start]:,}-{self.last[end]:,}" for start, end in runs[:3]]
        more = ", …" if len(runs) > len(shown) else ""
        places = f"positions {', '.join(shown)}{more}"
        start, end = runs[0]
        if len(runs) == 1 and self.first[start] == self.last[end]:  # the last token of long texts
            places = f"position {self.first[start]:,}"
        return f"{few.sum():,} of {len(few):,} buckets ({places})"

    def _remedy(self, few_queries: npt.NDArray[np.bool_], few_texts: npt.NDArray[np.bool_]) -> str:
        """What to change: a higher rate, or larger buckets if every position is kept already."""
        ways = ["Capture more texts that reach these positions"]
        if ((few_queries | few_texts) & (self.rate < 1)).any():
            ways.append("set capture.sampler.type: uniform and a higher capture.sampler.base_rate")
        if (few_queries & (self.rate == 1)).any():
            ways.append("set a larger capture.min_bucket_size")
        return ", or ".join(ways) + "."


def bucket_counts(
    sampler: PositionSampler, lengths: Sequence[int], times: float = 1.0
) -> BucketCounts:
    """Expected queries and texts per bucket. Every length stands for `times` texts."""
    tokens = np.asarray([length for length in lengths if length > 0], np.int64)  # (texts,)
    geometry = BucketGeometry(sampler.bucket_type, sampler.min_bucket_size)
    longest = int(tokens.max(initial=0))
    if not longest:
        return BucketCounts(*(np.empty(0, np.int64),) * 2, *(np.empty(0),) * 3)
    numbers = np.arange(geometry.first, int(geometry.bucket(longest - 1)) + 1)  # (b,)
    first = geometry.starts(numbers)  # (b,)
    last = geometry.ends(numbers)  # (b,)
    rate = sampler.rate(numbers)  # (b,)
    end = geometry.bucket(tokens - 1) - geometry.first  # (texts,) the bucket where a text ends
    inside = tokens - first[end]  # (texts,) its positions in this bucket
    through = len(tokens) - np.cumsum(np.bincount(end, minlength=len(numbers)))  # (b,) texts
    size = last - first + 1  # (b,)
    positions = through * size + np.bincount(end, inside, len(numbers))  # (b,)
    with_query = np.bincount(end, _at_least_one(rate[end], inside), len(numbers))  # (b,)
    texts = through * _at_least_one(rate, size) + with_query  # (b,)
    return BucketCounts(
        first, np.minimum(last, longest - 1), rate, times * rate * positions, times * texts
    )


def _at_least_one(rate: Array, positions: Ints) -> Array:
    """The probability that at least one of these positions is kept."""
    with np.errstate(divide="ignore"):  # a rate of 1
        kept: Array = -np.expm1(positions * np.log1p(-rate))
    return kept


@dataclass(frozen=True)
class AutoChoice:
    """Buckets and rates, and what they were chosen from. They stay the same for a whole capture."""

    min_bucket_size: int
    base_rate: float
    key_base_rate: float
    texts: int
    longest: int  # tokens of the longest of the first texts

    def sampler(self, seed: int) -> PositionSampler:
        """The sampler of positions."""
        return PositionSampler(
            "uniform", self.min_bucket_size, self.base_rate, seed, self.key_base_rate
        )

    def as_record(self) -> dict[str, Any]:
        """The choice as values for JSON."""
        return asdict(self)

    def describe(self, given_size: int | None) -> str:
        """One line with what was chosen and why. `given_size` is the bucket size of the user."""
        found = nearest_power_of_two(self.longest)
        why = (
            f"the power of two nearest to 1/{_BUCKETS} of {self.longest:,} tokens, the longest of "
            f"the first {count(min(self.texts, TEXTS_LOOKED_AT), 'text')}"
        )
        if given_size is not None:
            why = "capture.min_bucket_size"
        elif found != self.min_bucket_size:
            why = f"{count(self.texts, 'text')} must have {_LEAST_POSITIONS} positions in a bucket"
        expected = self.texts * self.base_rate
        return (
            f"sampler auto: buckets of {self.min_bucket_size:,} tokens ({why}), "
            f"{self.base_rate:.4g} queries and {self.key_base_rate:.4g} keys per bucket and text: "
            f"about {expected:,.0f} queries per bucket from {count(self.texts, 'text')}"
        )


def choose(texts: int, longest: int, given_size: int | None = None) -> AutoChoice:
    """Buckets and rates for `texts` texts, the first of which have at most `longest` tokens."""
    size = given_size or nearest_power_of_two(longest)
    while given_size is None and texts * size < _LEAST_POSITIONS:
        size *= 2
    queries = max(1.0, _QUERIES_PER_BUCKET / texts)
    keys = _KEYS_PER_QUERY * queries
    return AutoChoice(size, min(queries, float(size)), min(keys, float(size)), texts, longest)


def nearest_power_of_two(longest: int) -> int:
    """The power of two nearest by ratio to `longest` / 16, at least 1. In integers, so exact."""
    doubled_log = (longest * longest).bit_length() - 1  # ⌊2 · log2(longest)⌋
    return int(2 ** max(0, (doubled_log - 7) // 2))


def recorded_choice(plan: Mapping[str, Any] | None) -> AutoChoice | None:
    """The choice in the plan of a capture; None if the plan has no valid one."""
    try:
        chosen = dict((plan or {})["capture"]["sampler"]["chosen"])
        found = AutoChoice(**chosen)
    except (KeyError, TypeError, ValueError):
        return None
    whole = (found.min_bucket_size, found.texts, found.longest)
    rates = (found.base_rate, found.key_base_rate)
    valid = all(type(number) is int and number > 0 for number in whole) and all(
        type(rate) in (int, float) and 0 < rate <= found.min_bucket_size for rate in rates
    )
    return found if valid else None
