"""Expected queries and texts per bucket, and the message about too few of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qk_sniffer.sampling.bucket_counts import bucket_counts
from qk_sniffer.sampling.positions import PositionSampler

SAMPLERS = st.builds(
    PositionSampler,
    type=st.sampled_from(["log_uniform", "uniform", "all"]),
    min_bucket_size=st.integers(1, 64),
    base_rate=st.floats(0.1, 70),
)


@settings(max_examples=50)
@given(sampler=SAMPLERS, lengths=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_counts_equal_a_plain_loop(sampler: PositionSampler, lengths: list[int]) -> None:
    found = bucket_counts(sampler, lengths, times=2.0)
    longest = max(lengths)
    buckets = sampler.bucket(np.arange(longest))  # (longest,)
    assert len(found.queries) == len(np.unique(buckets))
    for place, bucket in enumerate(np.unique(buckets)):
        rate = float(sampler.rate(bucket))
        inside = [int((buckets[:length] == bucket).sum()) for length in lengths]
        assert found.queries[place] == pytest.approx(2 * rate * sum(inside))
        assert found.texts[place] == pytest.approx(2 * sum(1 - (1 - rate) ** n for n in inside))
        reached = np.flatnonzero(buckets == bucket)
        assert (found.first[place], found.last[place]) == (reached[0], reached[-1])


def test_enough_rows_give_no_message() -> None:
    assert bucket_counts(PositionSampler("uniform", 128, 22.0), [2_000] * 6).warning() is None
    assert bucket_counts(PositionSampler("all"), []).warning() is None


def test_the_message_names_buckets_and_what_to_change() -> None:
    lengths = [8_192] * 3 + [4_096] * 3
    found = bucket_counts(PositionSampler("uniform", 512, 8.0), lengths).warning()
    assert found == (
        "expected per head: fewer than 32 queries in 8 of 16 buckets (positions 4,096-8,191) and "
        "fewer than 4 texts in 8 of 16 buckets (positions 4,096-8,191). Plasticity there is biased "
        "or depends on single texts. Capture more texts that reach these positions, or set "
        "capture.sampler.type: uniform and a higher capture.sampler.base_rate."
    )
    whole = bucket_counts(PositionSampler("all", 4), [64] * 5).warning()
    assert whole is not None
    assert "fewer than 32 queries in 16 of 16 buckets (positions 0-63). " in whole
    assert whole.endswith("these positions, or set a larger capture.min_bucket_size.")
    one = bucket_counts(PositionSampler("all", 32), [481] * 20).warning()
    assert one is not None
    assert "fewer than 32 queries in 1 of 16 buckets (position 480). " in one
