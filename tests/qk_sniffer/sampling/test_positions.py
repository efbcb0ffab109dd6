"""Buckets, rates and the choice of positions and heads, also on the layouts of real models."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qk_sniffer.config import CaptureSettings
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.sampling.heads import choose_heads
from qk_sniffer.sampling.positions import PositionSampler, sample_heads
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES

BUCKET_SIZES = st.integers(1, 1 << 20)
LENGTHS = st.integers(0, 3000)
NUMBERS = st.integers(0, 1 << 40)
KINDS = ("q", "k")
TYPES = ("log_uniform", "uniform", "all")
SAMPLERS = st.builds(
    PositionSampler,
    type=st.sampled_from(TYPES),
    min_bucket_size=st.integers(1, 512),
    base_rate=st.floats(0.01, 600),
    seed=NUMBERS,
)


def kept(sampler, length=4096, example=0, layer=0, kind="q"):
    return sampler.positions(length, example=example, layer=layer, kind=kind).tolist()


@given(bucket=st.integers(0, 60), size=BUCKET_SIZES, rate=st.floats(1e-6, 1e6))
def test_rate_formulas(bucket, size, rate):
    expected = min(Fraction(1), Fraction(rate) / 2**bucket)
    got = PositionSampler("log_uniform", 128, rate).rate(bucket)
    assert float(got) == pytest.approx(float(expected), rel=1e-15)
    assert float(PositionSampler("uniform", size, rate).rate(bucket)) == min(1, rate / size)
    assert float(PositionSampler("all", size, rate).rate(bucket)) == 1


@given(sampler=SAMPLERS, length=LENGTHS, example=NUMBERS, layer=st.integers(0, 200))
def test_positions_are_ascending_within_the_text_and_repeatable(sampler, length, example, layer):
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
    sampler, length, more, example, layer
):
    longer = kept(sampler, length + more, example, layer)
    assert [position for position in longer if position < length] == kept(
        sampler, length, example, layer
    )


def test_another_layer_kind_example_or_seed_gives_another_choice():
    choices = {
        tuple(kept(PositionSampler("uniform", 128, 16, seed), 4096, example, layer, kind))
        for seed, example, layer, kind in product(range(3), range(3), range(3), KINDS)
    }
    assert len(choices) == 54


def overlap(first, second):
    return len(set(first) & set(second))


def test_choices_of_queries_and_keys_are_independent():
    sampler = PositionSampler("uniform", 100, 50)  # half of the positions, so a quarter in both
    n = 100_000
    both = overlap(kept(sampler, n, kind="q"), kept(sampler, n, kind="k"))
    assert abs(both - n / 4) < 4 * math.sqrt(n * 3 / 16)


@pytest.mark.parametrize("base_rate", [1.0, 16.0, 300.0])
@pytest.mark.parametrize("kind", ["log_uniform", "uniform"])
def test_every_bucket_keeps_its_share(kind, base_rate):
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


def test_expected_rows_of_whole_log_buckets_are_one_each():
    sampler = PositionSampler("log_uniform", 128, 1.0)
    assert sampler.expected_rows(2**16 - 1) == pytest.approx(255 / 128 + 8)
    assert PositionSampler("uniform", 128, 4.0).expected_rows(1280) == pytest.approx(40)
    assert PositionSampler("all").expected_rows(1280) == 1280


PAIRS = st.sets(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=60)


@given(pairs=PAIRS, seed=NUMBERS, data=st.data())
def test_sampled_heads_are_sorted_distinct_and_independent_of_order(pairs, seed, data):
    count = data.draw(st.integers(0, len(pairs)))
    chosen = sample_heads(sorted(pairs), count, seed)
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= pairs
    assert chosen == sorted(chosen)
    assert sample_heads(data.draw(st.permutations(sorted(pairs))), count, seed) == chosen
    assert sample_heads(iter(pairs), count, seed) == chosen


def test_every_head_has_the_same_chance():
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
def test_keys_may_have_a_rate_of_their_own(kind):
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


@cache
def layout_of(model_type):
    return probe(ARCHITECTURES[model_type].model("sdpa"))


def sample(count, seed):
    return {"count": count, "seed": seed}


def of(**settings):
    return CaptureSettings.model_validate(settings)


def chosen(model_type, **settings):
    """{layer: (query heads, key heads)}"""
    wanted = choose_heads(layout_of(model_type), of(**settings))
    assert [layer.facts.layer for layer in wanted] == sorted(layer.facts.layer for layer in wanted)
    return {layer.facts.layer: (layer.q, layer.k) for layer in wanted}


def refusal(layout, **settings):
    with pytest.raises(ConfigError) as caught:
        choose_heads(layout, of(**settings))
    return str(caught.value)


EVERY_HEAD = ((0, 1, 2, 3), (0, 1))


def test_by_default_every_head_of_every_layer_that_attends():
    for model_type in ("llama", "gemma3_text", "smollm3"):
        assert chosen(model_type) == dict.fromkeys(range(4), EVERY_HEAD)
    assert chosen("mllama_text_model") == dict.fromkeys((0, 2, 3), EVERY_HEAD)


def test_key_heads_follow_the_query_heads_of_their_group():
    for heads, q, k in (
        ([0], (0,), (0,)),
        ([1], (1,), (0,)),
        ([2, 3], (2, 3), (1,)),
        ([3, 0, 3], (0, 3), (0, 1)),
    ):
        assert chosen("llama", heads=heads, layers=[2]) == {2: (q, k)}


def test_full_attention_only_leaves_out_windows():
    assert list(chosen("gemma3_text", full_attention_only=True)) == [1, 3]
    assert list(chosen("gemma3_text", full_attention_only=True, layers=[0, 1])) == [1]
    assert list(chosen("llama", full_attention_only=True)) == [0, 1, 2, 3]
    assert list(chosen("llama4_text", full_attention_only=True)) == [3]


@pytest.mark.parametrize("count", [1, 5, 16])
def test_a_sample_has_the_wanted_number_of_query_heads(count):
    sampled = chosen("llama", head_sampling=sample(count, 7))
    pairs = [(layer, head) for layer, (q, _) in sampled.items() for head in q]
    assert len(set(pairs)) == count
    assert all(k == tuple(sorted({head // 2 for head in q})) for q, k in sampled.values())
    assert sampled == chosen("llama", head_sampling=sample(count, 7))


def test_a_sample_depends_on_its_seed_and_on_nothing_but_the_eligible_heads():
    samples = {str(chosen("llama", head_sampling=sample(6, seed))) for seed in range(5)}
    assert len(samples) == 5
    assert chosen("llama", head_sampling=sample(6, 0)) == chosen(
        "smollm3", head_sampling=sample(6, 0)
    )
    keys_alone = chosen("llama", head_sampling=sample(6, 0), capture_queries=False)
    assert {layer: k for layer, (_, k) in chosen("llama", head_sampling=sample(6, 0)).items()} == {
        layer: k for layer, (_, k) in keys_alone.items()
    }


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        ("llama", {"layers": [1, 4]}, "capture.layers: 4 given, there are 0-3"),
        ("mllama_text_model", {"layers": [0, 1]}, "capture.layers: 1 given (it has no self-att"),
        ("llama", {"heads": [0, 4]}, "capture.heads: 4 given, there are 0-3"),
        (
            "llama",
            {"head_sampling": sample(3, 0), "layers": [2], "heads": [0, 1]},
            "capture.head_sampling.count: 3 given, but only 2 query heads are eligible (1 layers)",
        ),
        ("gemma3_text", {"layers": [0, 2], "full_attention_only": True}, "capture.full_attention"),
    ],
)
def test_refusals(model_type, settings, message):
    assert refusal(layout_of(model_type), **settings).startswith(message)


def uneven(model_type="llama"):
    layout = layout_of(model_type)
    layers = tuple(
        replace(facts, q_heads=8, k_heads=8) if facts.layer == 1 else facts
        for facts in layout.layers
    )
    return replace(layout, layers=layers)


def test_layers_with_different_heads_need_separate_dumps():
    assert refusal(uneven()) == (
        "capture.layers: the layers differ in their number of heads (4 query and 2 key heads in "
        "layers 0,2-3; 8 query and 8 key heads in layers 1). Select layers with equal numbers, "
        "and capture the other layers into another folder."
    )
    wanted = choose_heads(uneven(), of(layers=[1]))
    assert [(layer.q, layer.k) for layer in wanted] == [(tuple(range(8)), tuple(range(8)))]
    assert len(choose_heads(uneven(), of(layers=[0, 2, 3]))) == 3


def test_pre_rope_is_refused_where_it_cannot_be_identified():
    layout = layout_of("smollm3")
    assert choose_heads(layout, of(capture_pre_rope=True)) == choose_heads(layout)
    unknown = replace(
        layout,
        layers=tuple(
            replace(facts, pre_rope_known=facts.layer == 1 or not facts.rope)
            for facts in layout.layers
        ),
    )
    assert refusal(unknown, capture_pre_rope=True) == (  # layer 3 has no rotary embedding
        "capture.capture_pre_rope: vectors before the rotary embedding cannot be identified in "
        "layers 0,2 of this model; leave capture_pre_rope out"
    )
    assert len(choose_heads(unknown, of(capture_pre_rope=True, layers=[1, 3]))) == 2
