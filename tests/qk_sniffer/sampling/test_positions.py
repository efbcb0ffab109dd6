"""Buckets, rates and the choice of positions and heads."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qk_dump.heads import Kind
from qk_sniffer.sampling.positions import PositionSampler, SamplerType, sample_heads

BUCKET_SIZES = st.integers(1, 1 << 20)
LENGTHS = st.integers(0, 3000)
NUMBERS = st.integers(0, 1 << 40)
KINDS: tuple[Kind, ...] = ("q", "k")
TYPES: tuple[SamplerType, ...] = ("log_uniform", "uniform", "all")
SAMPLERS = st.builds(
    PositionSampler,
    type=st.sampled_from(TYPES),
    min_bucket_size=st.integers(1, 512),
    base_rate=st.floats(0.01, 600),
    seed=NUMBERS,
)


def kept(
    sampler: PositionSampler,
    length: int = 4096,
    example: int = 0,
    layer: int = 0,
    kind: Kind = "q",
) -> list[int]:
    return sampler.positions(length, example=example, layer=layer, kind=kind).tolist()


@given(bucket=st.integers(0, 60), size=BUCKET_SIZES, rate=st.floats(1e-6, 1e6))
def test_rate_formulas(bucket: int, size: int, rate: float) -> None:
    expected = min(Fraction(1), Fraction(rate) / 2**bucket)
    got = PositionSampler("log_uniform", 128, rate).rate(bucket)
    assert float(got) == pytest.approx(float(expected), rel=1e-15)
    assert float(PositionSampler("uniform", size, rate).rate(bucket)) == min(1, rate / size)
    assert float(PositionSampler("all", size, rate).rate(bucket)) == 1


@given(sampler=SAMPLERS, length=LENGTHS, example=NUMBERS, layer=st.integers(0, 200))
def test_positions_are_ascending_within_the_text_and_repeatable(
    sampler: PositionSampler, length: int, example: int, layer: int
) -> None:
    for kind in KINDS:
        first = kept(sampler, length, example, layer, kind)
        assert first == sorted(set(first))
        assert all(0 <= position < length for position in first)
        again = PositionSampler(
            sampler.type, sampler.min_bucket_size, sampler.base_rate, sampler.seed
        )
        assert kept(again, length, example, layer, kind) == first


@given(sampler=SAMPLERS, length=LENGTHS, more=LENGTHS, example=NUMBERS, layer=st.integers(0, 200))
def test_a_longer_text_keeps_the_same_positions_in_its_beginning(
    sampler: PositionSampler, length: int, more: int, example: int, layer: int
) -> None:
    longer = kept(sampler, length + more, example, layer)
    assert [position for position in longer if position < length] == kept(
        sampler, length, example, layer
    )


def test_another_layer_kind_example_or_seed_gives_another_choice() -> None:
    choices = {
        tuple(kept(PositionSampler("uniform", 128, 16, seed), 4096, example, layer, kind))
        for seed, example, layer, kind in product(range(3), range(3), range(3), KINDS)
    }
    assert len(choices) == 54


def overlap(first: list[int], second: list[int]) -> int:
    return len(set(first) & set(second))


def test_choices_of_queries_and_keys_are_independent() -> None:
    sampler = PositionSampler("uniform", 100, 50)  # half of the positions, so a quarter in both
    n = 100_000
    both = overlap(kept(sampler, n, kind="q"), kept(sampler, n, kind="k"))
    assert abs(both - n / 4) < 4 * math.sqrt(n * 3 / 16)


@pytest.mark.parametrize("base_rate", [1.0, 16.0, 300.0])
@pytest.mark.parametrize("kind", ["log_uniform", "uniform"])
def test_every_bucket_keeps_its_share(kind: SamplerType, base_rate: float) -> None:
    sampler = PositionSampler(kind, 256, base_rate, seed=5)
    length, texts = 4000, 300
    buckets = sampler.bucket(np.arange(length))
    sizes = np.bincount(buckets)
    counts = np.zeros(len(sizes))
    for example in range(texts):
        positions = sampler.positions(length, example=example, layer=2, kind="k")
        counts += np.bincount(buckets[positions], minlength=len(sizes))
    for bucket in np.unique(buckets):
        rate = float(sampler.rate(bucket))
        n = texts * sizes[bucket]
        deviation = math.sqrt(n * rate * (1 - rate))
        assert abs(counts[bucket] - n * rate) <= 4.5 * deviation


def test_expected_rows_of_whole_log_buckets_are_one_each() -> None:
    sampler = PositionSampler("log_uniform", 128, 1.0)
    assert sampler.expected_rows(2**16 - 1) == pytest.approx(255 / 128 + 8)
    assert PositionSampler("uniform", 128, 4.0).expected_rows(1280) == pytest.approx(40)
    assert PositionSampler("all").expected_rows(1280) == 1280


PAIRS = st.sets(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=60)


@given(pairs=PAIRS, seed=NUMBERS, data=st.data())
def test_sampled_heads_are_sorted_distinct_and_independent_of_order(
    pairs: set[tuple[int, int]], seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(pairs)))
    chosen = sample_heads(sorted(pairs), count, seed)
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= pairs
    assert chosen == sorted(chosen)
    assert sample_heads(data.draw(st.permutations(sorted(pairs))), count, seed) == chosen
    assert sample_heads(iter(pairs), count, seed) == chosen


def test_every_head_has_the_same_chance() -> None:
    pairs = [(layer, head) for layer in range(4) for head in range(5)]
    seeds, count = 2000, 5
    times = dict.fromkeys(pairs, 0)
    for seed in range(seeds):
        for pair in sample_heads(pairs, count, seed):
            times[pair] += 1
    rate = count / len(pairs)
    deviation = math.sqrt(seeds * rate * (1 - rate))
    assert all(abs(seen - seeds * rate) < 4.5 * deviation for seen in times.values())
    assert sample_heads(pairs, count, 0) != sample_heads(pairs, count, 1)


@pytest.mark.parametrize("kind", ["log_uniform", "uniform"])
def test_keys_may_have_a_rate_of_their_own(kind: SamplerType) -> None:
    plain, own = (PositionSampler(kind, 64, 4.0, 3, rate) for rate in (None, 16.0))
    for example in range(20):
        place = {"example": example, "layer": 2}
        queries = [one.positions(4096, kind="q", **place) for one in (plain, own)]
        np.testing.assert_array_equal(*queries)
        few, many = (one.positions(4096, kind="k", **place) for one in (plain, own))
        assert set(few) < set(many)
    assert own.expected_rows(4096, "k") > 2 * own.expected_rows(4096, "q")
    same = PositionSampler(kind, 64, 4.0, 3, 4.0)
    np.testing.assert_array_equal(
        same.positions(999, example=0, layer=0, kind="k"),
        plain.positions(999, example=0, layer=0, kind="k"),
    )
