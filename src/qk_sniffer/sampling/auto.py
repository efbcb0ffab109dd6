"""The sampler `auto`: buckets and rates from the number of texts and the length of the first ones.

The analysis needs 32 queries per bucket, from several texts. `auto` gives about 128 of them where
texts are few, and one per text and bucket where they are many. Keys get four times as many, because
the error of a head comes mostly from keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.formatting import count

TEXTS_LOOKED_AT = 16
_BUCKETS = 16  # of the longest text that was looked at, or somewhat fewer or more
_LEAST_POSITIONS = 64  # of all texts in a bucket
_QUERIES_PER_BUCKET = 128  # from all texts
_KEYS_PER_QUERY = 4


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
