"""The sampler `auto`: its rule, and its record in a plan."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qk_sniffer.sampling.bucket_counts import (
    AutoChoice,
    choose,
    nearest_power_of_two,
    recorded_choice,
)


@given(longest=st.integers(1, 2**31 - 1))
def test_the_bucket_is_the_nearest_power_of_two(longest: int) -> None:
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
def test_rows_of_known_cases(
    texts: int, longest: int, bucket: int, queries: float, keys: float
) -> None:
    choice = choose(texts, longest)
    sampler = choice.sampler(seed=3)
    assert (sampler.type, sampler.min_bucket_size, sampler.seed) == ("uniform", bucket, 3)
    assert texts * sampler.expected_rows(longest, "q") == pytest.approx(queries)
    assert texts * sampler.expected_rows(longest, "k") == pytest.approx(keys)


@given(texts=st.integers(1, 10**6), longest=st.integers(1, 2**20))
def test_rates_fit_the_bucket_and_the_number_of_texts(texts: int, longest: int) -> None:
    choice = choose(texts, longest)
    size = choice.min_bucket_size
    assert texts * size >= 64
    assert size == nearest_power_of_two(longest) or texts * size < 128
    assert choice.base_rate == min(size, max(1, 128 / texts))
    assert choice.key_base_rate == min(size, 4 * max(1, 128 / texts))


def test_the_line_says_what_was_chosen_and_why() -> None:
    assert choose(12, 8_192).describe(None) == (
        "sampler auto: buckets of 512 tokens (the power of two nearest to 1/16 of 8,192 tokens, "
        "the longest of the first 12 texts), 10.67 queries and 42.67 keys per bucket and text: "
        "about 128 queries per bucket from 12 texts"
    )
    few = choose(1, 100).describe(None)
    assert "buckets of 64 tokens (1 text must have 64 positions in a bucket), 64 queries" in few


def test_a_plan_gives_the_choice_back_and_a_wrong_plan_none() -> None:
    choice = choose(7, 3_000)
    record = choice.as_record()

    def plan(**changes: Any) -> dict[str, Any]:
        return {"capture": {"sampler": {"type": "auto", "chosen": {**record, **changes}}}}

    assert recorded_choice(plan()) == choice
    for wrong in (
        *(None, {}, {"capture": None}, {"capture": {"sampler": {"type": "uniform"}}}),
        *(plan(texts=0), plan(longest=1.5), plan(base_rate="x"), plan(base_rate=math.nan)),
        *(plan(key_base_rate=1e9), plan(min_bucket_size=True), plan(more=1)),
    ):
        assert recorded_choice(wrong) is None
    assert isinstance(recorded_choice(plan()), AutoChoice)
