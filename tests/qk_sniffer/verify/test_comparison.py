"""Weights recomputed from captured vectors: the model's own, and not when anything is mixed up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import qk_sniffer
from qk_sniffer.engines.engine import AttentionRule
from qk_sniffer.engines.hf.logits import allowed
from qk_sniffer.notebook import Tap, TappedRows
from qk_sniffer.verify import comparison as verify
from qk_sniffer.verify.comparison import rule_weights, verify_model
from tiny_models import ARCHITECTURES

LENGTH = 40
FEW_TOKENS = 13  # so that tokens repeat
SLIDING, CHUNKED = "gemma3_text", "llama4_text"


def tokens(length: int = LENGTH) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, FEW_TOKENS, (length,), generator=generator).tolist()


def eager(model_type: str, **options: Any) -> Any:
    return ARCHITECTURES[model_type].model("eager", **options)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on processors without bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_precisions_are_given_their_rounding(dtype: torch.dtype) -> None:
    found = verify_model(eager("gpt_oss", dtype=dtype), tokens())
    assert not found.failed
    assert found.worst.difference > 1e-5  # which float32 would not pass
    assert found.dtype == str(dtype).removeprefix("torch.")


def test_the_tolerance_grows_with_the_scores() -> None:
    assert allowed("float32", 30.0) == 1e-5
    assert allowed("bfloat16", 2.0) == 2e-2
    assert allowed("bfloat16", 64.0) == 0.25
    assert allowed("float32", 2.0**20) == 2.0**-4
    assert allowed("float64", 1.0) == 1e-5


Rows = Callable[[Tap, int, int], TappedRows]


def mispaired(original: Rows) -> Rows:
    return lambda tapped, layer, head: original(tapped, layer, 1 - head)


def shifted(original: Rows) -> Rows:
    def rows(tapped: Tap, layer: int, head: int) -> TappedRows:
        right = original(tapped, layer, head)
        moved = right.with_columns({"vector": np.roll(right.vectors, 1, axis=0)})
        return TappedRows(moved.columns)

    return rows


@pytest.mark.parametrize(
    ("model_type", "mistake"), [("llama", mispaired), ("gpt_oss", shifted), (CHUNKED, mispaired)]
)
def test_other_vectors_are_noticed_in_every_layer(
    model_type: str, mistake: Callable[[Rows], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tap, "keys", mistake(Tap.keys))
    found = verify_model(eager(model_type), tokens())
    assert len(found.failed) == 4
    assert min(layer.difference for layer in found.layers) > 1e-2


def with_rule(monkeypatch: pytest.MonkeyPatch, change: Callable[[AttentionRule], Any]) -> None:
    """Recompute the weights by another rule."""

    def wrong(q: Any, k: Any, rule: AttentionRule, head: int) -> Any:
        return rule_weights(q, k, change(rule), head)

    monkeypatch.setattr(verify, "rule_weights", wrong)


def test_a_scale_that_is_off_by_a_hundredth_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rule(monkeypatch, lambda rule: replace(rule, scale=1.01 * rule.scale))
    found = verify_model(eager("llama"), tokens())
    assert len(found.failed) == 4
    assert found.worst.difference == max(layer.difference for layer in found.layers)


@pytest.mark.parametrize("model_type", ["smollm3", "stablelm", "deepseek_v3"])
def test_vectors_before_the_rotary_embedding_are_noticed(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "tap", partial(qk_sniffer.tap, pre_rope=True))
    found = verify_model(eager(model_type), tokens())
    turned = [layer.facts.layer for layer in found.layers if layer.facts.rope]
    assert [layer.facts.layer for layer in found.failed] == turned


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        (SLIDING, {"window": 9}),
        (SLIDING, {"window": None}),
        (CHUNKED, {"chunked": False}),
    ],
)
def test_a_wrong_window_is_noticed_where_there_is_one(
    model_type: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rule(monkeypatch, lambda rule: replace(rule, **change) if rule.window else rule)
    found = verify_model(eager(model_type), tokens())
    windowed = [layer.facts.layer for layer in found.layers if layer.facts.window]
    assert [layer.facts.layer for layer in found.failed] == windowed


def test_sinks_and_caps_have_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rule(monkeypatch, lambda rule: replace(rule, sinks=None))
    assert len(verify_model(eager("gpt_oss"), tokens()).failed) == 4
    monkeypatch.undo()
    model = eager("gemma2")
    for layer in model.model.layers:  # scores near the cap of 50
        layer.self_attn.q_proj.weight.data.mul_(40)
    assert not verify_model(model, tokens()).failed
    with_rule(monkeypatch, lambda rule: replace(rule, softcap=None))
    assert verify_model(model, tokens()).failed


def test_nan_never_passes() -> None:
    model = eager("llama")
    model.model.layers[2].self_attn.k_proj.weight.data[:16] = math.nan
    found = verify_model(model, tokens(), tolerance=1e9)
    assert [layer.facts.layer for layer in found.failed] == [2, 3]
    assert math.isnan(found.worst.difference)
    assert found.worst.facts.layer == 2


def test_nothing_stays_behind_and_outputs_are_the_same() -> None:
    model, ids = eager("llama"), torch.tensor([tokens()])
    with torch.inference_mode():
        before = model(input_ids=ids, use_cache=False).logits
        verify_model(model, tokens())
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, before)
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())


def test_weights_by_hand() -> None:
    q, k = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 1.0], [0.5, 4.0]])
    rule = AttentionRule(0.5, None, None, chunked=False)
    logits, weights = rule_weights(q, k, rule, 0)
    np.testing.assert_array_equal(logits, [[1.5, -math.inf], [1.0, 4.0]])
    both = math.exp(1) + math.exp(4)
    np.testing.assert_allclose(weights, [[1, 0], [math.exp(1) / both, math.exp(4) / both]])
    bias = torch.tensor([[1.0, 9.0], [2.0, 3.0]])[None, None]
    logits, _ = rule_weights(q, k, replace(rule, softcap=2.0, extra=bias), 0)
    expected = [
        [1 + 2 * math.tanh(0.75), -math.inf],
        [2 + 2 * math.tanh(0.5), 3 + 2 * math.tanh(2)],
    ]
    np.testing.assert_allclose(logits, expected)
    _, weights = rule_weights(q, k, replace(rule, sinks=torch.tensor([2.5])), 0)
    share = math.exp(1.5) / (math.exp(1.5) + math.exp(2.5))
    np.testing.assert_allclose(weights[0], [share, 0])
