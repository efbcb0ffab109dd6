"""The sampler `auto`: its rule and record. Expected queries and texts per bucket."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qk_sniffer.sampling.bucket_counts import (
    AutoChoice,
    bucket_counts,
    choose,
    nearest_power_of_two,
    recorded_choice,
)
from qk_sniffer.sampling.positions import PositionSampler


@given(longest=st.integers(1, 2**31 - 1))
def test_the_bucket_is_the_nearest_power_of_two(longest):
    found = nearest_power_of_two(longest)
    assert found.bit_count() == 1
    distance = abs(math.log2(longest / 16 / found))
    assert distance <= 0.5 + 1e-12 or (found == 1 and longest < 16)


@pytest.mark.parametrize(
    ("texts", "longest", "bucket", "queries", "keys"),
    [  # rows per head of texts that all have the longest length
        (12, 8_192, 512, 2_048, 8_192),
        (500, 131_072, 8_192, 8_000, 32_000),
        (6, 2_000, 128, 2_000, 8_000),
    ],
)
def test_rows_of_known_cases(texts, longest, bucket, queries, keys):
    choice = choose(texts, longest)
    sampler = choice.sampler(seed=3)
    assert (sampler.type, sampler.min_bucket_size, sampler.seed) == ("uniform", bucket, 3)
    assert texts * sampler.expected_rows(longest, "q") == pytest.approx(queries)
    assert texts * sampler.expected_rows(longest, "k") == pytest.approx(keys)


@given(texts=st.integers(1, 10**6), longest=st.integers(1, 2**20))
def test_rates_fit_the_bucket_and_the_number_of_texts(texts, longest):
    choice = choose(texts, longest)
    size = choice.min_bucket_size
    assert texts * size >= 64
    assert size == nearest_power_of_two(longest) or texts * size < 128
    assert choice.base_rate == min(size, max(1, 128 / texts))
    assert choice.key_base_rate == min(size, 4 * max(1, 128 / texts))


def test_a_plan_gives_the_choice_back_and_a_wrong_plan_none():
    choice = choose(7, 3_000)
    record = choice.as_record()

    def plan(**changes):
        return {"capture": {"sampler": {"type": "auto", "chosen": {**record, **changes}}}}

    assert recorded_choice(plan()) == choice
    for wrong in (
        *(None, {}, {"capture": None}, {"capture": {"sampler": {"type": "uniform"}}}),
        *(plan(texts=0), plan(longest=1.5), plan(base_rate="x"), plan(base_rate=math.nan)),
        *(plan(key_base_rate=1e9), plan(min_bucket_size=True), plan(more=1)),
    ):
        assert recorded_choice(wrong) is None
    assert isinstance(recorded_choice(plan()), AutoChoice)


SAMPLERS = st.builds(
    PositionSampler,
    type=st.sampled_from(["log_uniform", "uniform", "all"]),
    min_bucket_size=st.integers(1, 64),
    base_rate=st.floats(0.1, 70),
)


@settings(max_examples=50)
@given(sampler=SAMPLERS, lengths=st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_counts_equal_a_plain_loop(sampler, lengths):
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


def test_enough_rows_give_no_message():
    assert bucket_counts(PositionSampler("uniform", 128, 22.0), [2_000] * 6).warning() is None
    assert bucket_counts(PositionSampler("all"), []).warning() is None


def test_the_message_names_buckets_and_what_to_change():
    lengths = [8_192] * 3 + [4_096] * 3
    found = bucket_counts(PositionSampler("uniform", 512, 8.0), lengths).warning()
    assert found == (
        "expected per head: fewer than 32 queries in 8 of 16 buckets (positions 4,096-8,191) and "
        "fewer than 4 texts in 8 of 16 buckets (positions 4,096-8,191). Plasticity there is biased "
        "or depends on single texts. Capture more texts that reach these positions, or set "
        "capture.sampler.type: uniform and a higher capture.sampler.base_rate."
    )
    one = bucket_counts(PositionSampler("all", 32), [481] * 20).warning()
    assert one is not None
    assert "fewer than 32 queries in 1 of 16 buckets (position 480). " in one
