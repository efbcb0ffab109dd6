"""Attention columns of captured queries against the weights of the model's own function."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from qk_dump.attention_columns import MASS_BINS, AttentionRows, first_distances
from qk_dump.attention_limits import check_attention
from qk_dump.column_rules import rules_of
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_sniffer.attention.query_attention import kernel_works, query_attention
from qk_sniffer.attention.rule import AttentionRule, SampledQueries, TextTokens
from qk_sniffer.attention.totals import attention_rows
from qk_sniffer.model.attention_hooks import AttentionCall, attention_hook
from qk_sniffer.model.layout import LayerFacts, decoder_of, run_backbone
from qk_sniffer.model.logits import in_float32
from qk_sniffer.notebook import tap
from qk_sniffer.pipeline.description import layer_record
from qk_sniffer.sampling.heads import KindRows
from qk_sniffer.tapped_rows import TappedRows
from tiny_models import ARCHITECTURES, RARE, needs_rare

LENGTH = 40
PLACE = Path("dump")
MODELS = {**ARCHITECTURES, **RARE}


def tokens(batch: int = 2, length: int = LENGTH) -> Tensor:
    """Texts of few tokens, which repeat."""
    return torch.randint(3, 11, (batch, length), generator=torch.Generator().manual_seed(1))


class OwnAttention(NamedTuple):
    """What the attention function of a layer does with one text."""

    weights: Tensor  # (heads, s, s) in float32 arithmetic
    seen: Tensor  # (heads, s, s)
    value_norm: Tensor  # (key heads, s)


def own_attention(
    model: Any, ids: Tensor, layers: list[LayerFacts]
) -> dict[int, list[OwnAttention]]:
    """Layer → the attention of every text."""
    found: dict[int, list[OwnAttention]] = {}
    wanted = {(facts.module, facts.call): facts.layer for facts in layers}
    calls: dict[Any, int] = {}

    def remember(call: AttentionCall) -> None:
        if not call.is_self_attention:
            return
        number = calls.get(call.module, 0)
        calls[call.module] = number + 1
        if (call.module, number) in wanted:
            own = OwnAttention(
                in_float32(call).weights(),
                call.visible_keys(),
                call.value[0].double().norm(dim=-1),
            )
            found.setdefault(wanted[call.module, number], []).append(own)

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


def check_keys(found: AttentionRows, own: OwnAttention, head: int, ids: Tensor) -> None:
    """First token, strongest key, duplicate and induction keys, with plain sums."""
    w, seen, token = own.weights[head].double().numpy(), own.seen[head].numpy(), ids.numpy()
    i, j = np.arange(len(w))[:, None], np.arange(len(w))  # query, key
    np.testing.assert_allclose(found.first_mass, w[:, 0], atol=1e-5)
    strongest = w[i[:, 0], found.argmax_position]
    np.testing.assert_allclose(strongest, w.max(axis=1), atol=1e-5)
    np.testing.assert_array_equal(found.argmax_token, token[found.argmax_position])
    duplicate = (token[j] == token[i]) & (j < i)
    induction = (token[j - 1] == token[i]) & (j >= 1) & (j <= i)
    for keys, mass, number in (
        (duplicate, found.duplicate_mass, found.duplicate_keys),
        (induction, found.induction_mass, found.induction_keys),
    ):
        np.testing.assert_allclose(mass, (w * keys).sum(axis=1), atol=1e-5)
        np.testing.assert_array_equal(number, (seen & keys).sum(axis=1))


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
    known = own_attention(model, ids, layers)
    dump = Dump(PLACE, {}, DumpManifest(layers=[layer_record(facts) for facts in layers]))
    for facts in layers:
        weights = [own.weights for own in known[facts.layer]]
        for head in range(facts.k_heads):  # the text is short: all its queries are used
            check_received(tapped.keys(facts.layer, head), weights, head, facts.group)
        possible = rules_of(dump, facts.layer).attention
        assert possible.learned_sinks is facts.logits.sinks
        assert possible.learned_sinks or name != "gpt_oss"
        for head in range(facts.q_heads):
            rows = tapped.queries(facts.layer, head)
            keys = tapped.keys(facts.layer, head // facts.group)
            assert rows.attention is not None
            position = rows.position.astype(np.float64)
            check_attention(rows.attention, position, facts.window, possible, PLACE, 0)
            for text, own in enumerate(known[facts.layer]):
                part, expected = rows.attention[rows.example_id == text], own.weights
                check_head(part, expected[head], 1e-5)
                check_keys(part, own, head, ids[text])
                norms = keys.value_norm[keys.example_id == text]
                place = head // facts.group % len(own.value_norm)
                np.testing.assert_allclose(norms, own.value_norm[place], rtol=1e-6)
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


def test_the_earliest_of_equal_keys_is_the_strongest() -> None:
    """All keys are equal, then those from 5 on are stronger; a window of 4 hides the first."""
    rows = KindRows(np.zeros(12, np.int64), np.arange(12))
    queries = SampledQueries(torch.ones(1, 12, 3), rows, (0,), 1)
    key = torch.ones(1, 1, 12, 3)
    for window, strong in ((None, 99), (4, 99), (None, 5), (4, 5)):
        key[0, 0, strong:] = 2.0
        found = query_attention(queries, key, AttentionRule(1.0, None, window, False))
        rows_of = attention_rows(found.numpy().transpose(1, 0, 2), rows.sequence, None)
        low = [0 if window is None else max(0, place - window + 1) for place in range(12)]
        expected = [max(low[i], strong if i >= strong else 0) for i in range(12)]
        assert rows_of.argmax_position[:, 0].tolist() == expected
        assert rows_of.duplicate_mass is None
        key[:] = 1.0


@pytest.mark.parametrize("rule", ["full", "window", "chunks"])
def test_keys_of_a_token_are_counted_by_searching_a_sorted_list(rule: str) -> None:
    """As on a GPU: two texts of different lengths, the second one padded."""
    window, chunked = {"full": (None, False), "window": (7, False), "chunks": (7, True)}[rule]
    ids = torch.randint(0, 5, (2, 50), generator=torch.Generator().manual_seed(3))
    rows = KindRows(np.repeat([0, 1], [50, 30]), np.append(np.arange(50), np.arange(30)))
    low = AttentionRule(1.0, None, window, chunked).first_visible(torch.tensor(rows.position))
    places = [torch.tensor(part) for part in (rows.sequence, rows.position)]
    duplicates, inductions = TextTokens(ids).counts(*places, low)
    for row, (text, i) in enumerate(zip(rows.sequence, rows.position, strict=True)):
        first, token = int(low[row]), ids[text].tolist()
        assert duplicates[row] == sum(token[j] == token[i] for j in range(first, i))
        after = range(max(1, first), i + 1)
        assert inductions[row] == sum(token[j - 1] == token[i] for j in after)


def test_plain_torch_is_used_where_the_kernel_cannot_run() -> None:
    """Without Triton, or without a GPU, the test run of the kernel fails."""
    with pytest.warns(RuntimeWarning, match="plain torch is used"):
        assert not kernel_works(torch.device("cpu"), torch.float64, 48, 4)


def test_a_bug_of_ours_is_not_a_missing_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("qk_sniffer.attention.kernel")
    vars(module)["kernel_attention"] = in_float32  # has fewer arguments
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(TypeError, match="in_float32"):
        kernel_works(torch.device("cpu"), torch.float64, 40, 4)
