"""Attention columns of captured queries against the weights of the model's own function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qk_dump.attention_columns import MASS_BINS, AttentionRows, first_distances
from qk_dump.attention_limits import check_attention
from qk_dump.column_rules import rules_of
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_sniffer.attention.query_attention import kernel_works
from qk_sniffer.model.attention_hooks import AttentionCall, attention_hook
from qk_sniffer.model.layout import LayerFacts, decoder_of, run_backbone
from qk_sniffer.model.logits import in_float32
from qk_sniffer.notebook import TappedRows, tap
from qk_sniffer.pipeline.description import layer_record
from tiny_models import ARCHITECTURES, RARE, VOCABULARY, needs_rare

LENGTH = 40
PLACE = Path("dump")
MODELS = {**ARCHITECTURES, **RARE}


def tokens(batch: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def weights_of(model: Any, ids: Tensor, layers: list[LayerFacts]) -> dict[int, list[Tensor]]:
    """Layer → (heads, s, s) of every text: the function's weights in float32 arithmetic."""
    found: dict[int, list[Tensor]] = {}
    wanted = {(facts.module, facts.call): facts.layer for facts in layers}
    calls: dict[Any, int] = {}

    def remember(call: AttentionCall) -> None:
        if not call.is_self_attention:
            return
        number = calls.get(call.module, 0)
        calls[call.module] = number + 1
        if (call.module, number) in wanted:
            weights = in_float32(call).weights()
            found.setdefault(wanted[call.module, number], []).append(weights)

    for text in ids:
        calls.clear()
        with attention_hook(remember):
            run_backbone(decoder_of(model), text[None])
    return found


def expected_columns(weights: Tensor) -> tuple[Any, Any, Any]:
    """Entropy (s,), sink mass (s,) and masses (s, bins) of one head's weights (s, s)."""
    w = weights.double().numpy()
    s = len(w)
    entropy = -np.sum(np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0), axis=1)
    distance = np.arange(s)[:, None] - np.arange(s)[None]  # (s, s)
    bins = np.searchsorted(first_distances(), distance, side="right") - 1
    masses = np.stack([np.sum(w * (bins == b), axis=1) for b in range(MASS_BINS)], axis=1)
    return entropy, w[:, :4].sum(axis=1), masses


def check_head(found: AttentionRows, weights: Tensor, tolerance: float) -> None:
    entropy, sinks, masses = expected_columns(weights)
    np.testing.assert_allclose(found.entropy, entropy, atol=5 * tolerance)
    np.testing.assert_allclose(found.sink_mass, sinks, atol=tolerance)
    np.testing.assert_allclose(found.mass_by_distance, masses, atol=tolerance)
    largest = weights.amax(dim=1).double().numpy()
    np.testing.assert_allclose(np.exp(found.max_logit - found.lse), largest, atol=tolerance)


def check_received(keys: TappedRows, weights: list[Tensor], head: int, group: int) -> None:
    """What the keys of a head receive is the mean of the weights (heads, s, s) over queries."""
    assert keys.received is not None
    for text, all_heads in enumerate(weights):
        expected = all_heads[head * group : (head + 1) * group].double().mean(dim=1)  # (group, s)
        found = keys.received.received[keys.example_id == text]  # (s, group)
        np.testing.assert_allclose(found, expected.T.numpy(), atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_columns_are_sums_of_the_models_own_weights(name: str) -> None:
    """Vectors are those of a model in bfloat16; the tests of `verify` use float32."""
    if name in RARE:
        needs_rare(name)
    architecture = MODELS[name]
    model = architecture.model(architecture.attention[-1], torch.bfloat16)
    ids = tokens()
    with torch.no_grad(), tap(model, attention=True, attended_keys=3) as tapped:
        run_backbone(decoder_of(model), ids)
    layers = [layer.facts for layer in tapped.wanted]
    weights = weights_of(model, ids, layers)
    dump = Dump(PLACE, {}, DumpManifest(layers=[layer_record(facts) for facts in layers]))
    for facts in layers:
        for head in range(facts.k_heads):  # the text is short: all its queries are used
            check_received(tapped.keys(facts.layer, head), weights[facts.layer], head, facts.group)
        possible = rules_of(dump, facts.layer).attention
        assert possible.learned_sinks is facts.logits.sinks
        assert possible.learned_sinks or name != "gpt_oss"
        for head in range(facts.q_heads):
            rows = tapped.queries(facts.layer, head)
            keys = tapped.keys(facts.layer, head // facts.group)
            assert rows.attention is not None
            position = rows.position.astype(np.float64)
            check_attention(rows.attention, position, facts.window, possible, PLACE, 0)
            for text, expected in enumerate(weights[facts.layer]):
                part = rows.attention[rows.example_id == text]
                check_head(part, expected[head], 1e-5)
                products = rows.vectors[rows.example_id == text].astype(np.float64) @ (
                    keys.vectors[keys.example_id == text].T.astype(np.float64)
                )
                logits = products * facts.scale
                if facts.softcap:
                    logits = facts.softcap * np.tanh(logits / facts.softcap)
                seen = expected[head].numpy() > 0
                if not facts.logits.biased:
                    exact = np.exp(logits - part.lse[:, None])
                    np.testing.assert_allclose(exact[seen], expected[head].numpy()[seen], atol=1e-5)


def test_plain_torch_is_used_where_the_kernel_cannot_run() -> None:
    """Without Triton, or without a GPU, the test run of the kernel fails."""
    with pytest.warns(RuntimeWarning, match="plain torch is used"):
        assert not kernel_works(torch.device("cpu"), torch.float64, 48, 4)
