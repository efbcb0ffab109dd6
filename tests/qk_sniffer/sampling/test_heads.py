"""Which heads are captured, on the layouts of real models."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from qk_sniffer.config import CaptureSettings
from qk_sniffer.engines.hf.layout import ModelLayout
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.sampling.heads import choose_heads
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES


@cache
def layout_of(model_type: str) -> ModelLayout:
    return probe(ARCHITECTURES[model_type].model("sdpa"))


def sample(count: int, seed: int) -> dict[str, int]:
    return {"count": count, "seed": seed}


def of(**settings: Any) -> CaptureSettings:
    return CaptureSettings.model_validate(settings)


def chosen(model_type: str, **settings: Any) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """{layer: (query heads, key heads)}"""
    wanted = choose_heads(layout_of(model_type), of(**settings))
    assert [layer.facts.layer for layer in wanted] == sorted(layer.facts.layer for layer in wanted)
    return {layer.facts.layer: (layer.q, layer.k) for layer in wanted}


def refusal(layout: ModelLayout, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        choose_heads(layout, of(**settings))
    return str(caught.value)


EVERY_HEAD = ((0, 1, 2, 3), (0, 1))


def test_by_default_every_head_of_every_layer_that_attends() -> None:
    for model_type in ("llama", "gemma3_text", "smollm3"):
        assert chosen(model_type) == dict.fromkeys(range(4), EVERY_HEAD)
    assert chosen("mllama_text_model") == dict.fromkeys((0, 2, 3), EVERY_HEAD)


def test_key_heads_follow_the_query_heads_of_their_group() -> None:
    for heads, q, k in (
        ([0], (0,), (0,)),
        ([1], (1,), (0,)),
        ([2, 3], (2, 3), (1,)),
        ([3, 0, 3], (0, 3), (0, 1)),
    ):
        assert chosen("llama", heads=heads, layers=[2]) == {2: (q, k)}


def test_full_attention_only_leaves_out_windows() -> None:
    assert list(chosen("gemma3_text", full_attention_only=True)) == [1, 3]
    assert list(chosen("gemma3_text", full_attention_only=True, layers=[0, 1])) == [1]
    assert list(chosen("llama", full_attention_only=True)) == [0, 1, 2, 3]
    assert list(chosen("llama4_text", full_attention_only=True)) == [3]


@pytest.mark.parametrize("count", [1, 5, 16])
def test_a_sample_has_the_wanted_number_of_query_heads(count: int) -> None:
    sampled = chosen("llama", head_sampling=sample(count, 7))
    pairs = [(layer, head) for layer, (q, _) in sampled.items() for head in q]
    assert len(set(pairs)) == count
    assert all(k == tuple(sorted({head // 2 for head in q})) for q, k in sampled.values())
    assert sampled == chosen("llama", head_sampling=sample(count, 7))


def test_a_sample_depends_on_its_seed_and_on_nothing_but_the_eligible_heads() -> None:
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
        (
            "mllama_text_model",
            {"layers": [0, 1]},
            "capture.layers: 1 given (it has no self-attention), there are 0,2-3",
        ),
        ("llama", {"heads": [0, 4]}, "capture.heads: 4 given, there are 0-3"),
        (
            "llama",
            {"head_sampling": {"count": 17, "seed": 0}},
            "capture.head_sampling.count: 17 given, but only 16 query heads are eligible "
            "(4 layers); give a smaller count",
        ),
        (
            "llama",
            {"head_sampling": {"count": 3, "seed": 0}, "layers": [2], "heads": [0, 1]},
            "capture.head_sampling.count: 3 given, but only 2 query heads are eligible (1 layers)",
        ),
        (
            "gemma3_text",
            {"layers": [0, 2], "full_attention_only": True},
            "capture.full_attention_only: none of the selected layers has full attention",
        ),
    ],
)
def test_refusals(model_type: str, settings: dict[str, Any], message: str) -> None:
    assert refusal(layout_of(model_type), **settings).startswith(message)


def uneven(model_type: str = "llama") -> ModelLayout:
    layout = layout_of(model_type)
    layers = tuple(
        replace(facts, q_heads=8, k_heads=8) if facts.layer == 1 else facts
        for facts in layout.layers
    )
    return replace(layout, layers=layers)


def test_layers_with_different_heads_need_separate_dumps() -> None:
    assert refusal(uneven()) == (
        "capture.layers: the layers differ in their number of heads (4 query and 2 key heads in "
        "layers 0,2-3; 8 query and 8 key heads in layers 1). Select layers with equal numbers, "
        "and capture the other layers into another folder."
    )
    wanted = choose_heads(uneven(), of(layers=[1]))
    assert [(layer.q, layer.k) for layer in wanted] == [(tuple(range(8)), tuple(range(8)))]
    assert len(choose_heads(uneven(), of(layers=[0, 2, 3]))) == 3


def test_pre_rope_is_refused_where_it_cannot_be_identified() -> None:
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
