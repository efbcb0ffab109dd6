"""Attention columns of captured queries against the weights of the model's own function."""

import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from qk_dump.checks import rules_of
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_sniffer.attention import query_attention as columns_of_queries
from qk_sniffer.attention import received
from qk_sniffer.attention.queries import SampledQueries, TextTokens
from qk_sniffer.attention.query_attention import chunked_attention, query_attention
from qk_sniffer.attention.totals import attention_columns
from qk_sniffer.capture.description import layer_record
from qk_sniffer.engines.engine import AttentionRule
from qk_sniffer.engines.hf.attention_hooks import attention_hook
from qk_sniffer.engines.hf.layout import decoder_of, run_backbone
from qk_sniffer.engines.hf.logits import in_float32
from qk_sniffer.notebook import tap
from qk_sniffer.sampling.rows import KindRows
from tiny_models import ARCHITECTURES, RARE, needs_rare, shown_by

LENGTH = 40
PLACE = Path("dump")
MODELS = {**ARCHITECTURES, **RARE}


def tokens(batch=2, length=LENGTH):
    """Texts of few tokens, which repeat."""
    return torch.randint(3, 11, (batch, length), generator=torch.Generator().manual_seed(1))


def own_attention(model, ids, layout):
    """Layer → weights (heads, s, s) and lengths of values (key heads, s) of every text.

    The attention function of the model computes the weights, in float32.
    """
    found = {}
    wanted = {(place.module, place.call): layer for layer, place in layout.places.items()}
    calls = Counter()

    def remember(call):
        layer = wanted.get((call.module, calls[call.module]))
        calls[call.module] += call.is_self_attention
        if call.is_self_attention and layer is not None:
            own = (in_float32(call).weights(), call.value[0].double().norm(dim=-1))
            found.setdefault(layer, []).append(own)

    for text in ids:
        calls.clear()
        with attention_hook(remember):
            run_backbone(decoder_of(model), text[None])
    return found


@pytest.mark.parametrize(
    "name",
    shown_by(
        MODELS,
        *("gemma2", "gpt2", "gpt_oss", "llama4_text", "deepseek_v3", "mllama_text_model"),
        *("deepseek_v32", "granite_swa", "inkling_text", "minimax_m3_vl_text", "zamba2"),
    ),
)
def test_columns_fit_the_models_own_weights(name):
    """Of a model in bfloat16. Tests of `verify` compare all sums of weights in float32."""
    if name in RARE:
        needs_rare(name)
    architecture, ids = MODELS[name], tokens()
    model = architecture.model(architecture.attention[-1], torch.bfloat16)
    with torch.no_grad(), tap(model, sampler="all", attended_keys=3) as tapped:
        run_backbone(decoder_of(model), ids)
    layers, known = tapped.layout.layers, own_attention(model, ids, tapped.layout)
    dump = Dump(PLACE, {}, DumpManifest(layers=[layer_record(facts, False) for facts in layers]))
    for facts in layers:
        assert facts.logits.sinks or name != "gpt_oss"
        for head in range(facts.q_heads):
            rows = tapped.queries(facts.layer, head)
            keys = tapped.keys(facts.layer, head // facts.group)
            rules_of(dump, HeadId(facts.layer, head, "q")).check(rows, PLACE, 0)
            for text, (weights, value_norm) in enumerate(known[facts.layer]):
                q, k = rows[rows.example_id == text], keys[keys.example_id == text]
                check_head(facts, q, k, weights[head].double().numpy(), ids[text].numpy())
                # the text is short: all its queries measure what keys receive
                mean = weights[head].double().mean(dim=0).numpy()  # (s,)
                received_here = k["received"][:, head % facts.group]  # (s,)
                np.testing.assert_allclose(received_here, mean, atol=1e-6)
                norms = value_norm[head // facts.group % len(value_norm)]
                np.testing.assert_allclose(k["value_norm"], norms, rtol=1e-6)


def check_head(facts, q, k, weights, ids):
    """The largest weight and its key; all weights from vectors and `lse`."""
    largest = np.exp(q["max_logit"] - q["lse"])
    np.testing.assert_allclose(largest, weights.max(axis=1), atol=1e-5)
    strongest = weights[np.arange(len(ids)), q["argmax_position"]]
    np.testing.assert_allclose(strongest, weights.max(axis=1), atol=1e-5)
    np.testing.assert_array_equal(q["argmax_token"], ids[q["argmax_position"]])
    logits = q["vector"].astype(np.float64) @ k["vector"].T.astype(np.float64) * facts.scale
    if facts.softcap:
        logits = facts.softcap * np.tanh(logits / facts.softcap)
    seen = weights > 0
    if facts.logits is not None and not facts.logits.biased:
        exact = np.exp(logits - q["lse"][:, None])
        np.testing.assert_allclose(exact[seen], weights[seen], atol=1e-5)


def test_the_earliest_of_equal_keys_is_the_strongest():
    """All keys are equal, then those from 5 on are stronger; a window of 4 hides the first."""
    rows = KindRows(np.zeros(12, np.int64), np.arange(12))
    queries = SampledQueries(torch.ones(1, 12, 3), rows, np.zeros(1, np.int64), (0,), 1)
    key = torch.ones(12, 1, 3)
    for window, strong in ((None, 99), (4, 99), (None, 5), (4, 5)):
        key[strong:] = 2.0
        found = query_attention(queries, key, AttentionRule(1.0, None, window, False))
        columns = attention_columns(found[0].numpy())
        low = [0 if window is None else max(0, place - window + 1) for place in range(12)]
        expected = [max(low[i], strong if i >= strong else 0) for i in range(12)]
        assert columns["argmax_position"].tolist() == expected
        assert np.isnan(columns["duplicate_mass"]).all()  # tokens are not known
        assert set(columns["induction_keys"]) == {-1}
        key[:] = 1.0


@pytest.mark.parametrize("window", [None, 7])
def test_the_size_of_blocks_changes_no_number(window):
    generator = torch.Generator().manual_seed(5)
    vectors, key = (torch.randn(shape, generator=generator) for shape in ((4, 90, 8), (90, 2, 8)))
    rows = KindRows(np.repeat([0, 1], [50, 40]), np.r_[0:50, 0:40])
    ids = TextTokens(torch.randint(0, 5, (90,), generator=generator))
    queries = SampledQueries(vectors, rows, np.array([0, 50]), (0, 1, 2, 3), 2, ids)
    rule = AttentionRule(0.3, None, window, chunked=False)
    whole = chunked_attention(queries, key, rule, 1 << 24)
    for most_logits in (1, 300, None):  # 1: a row at a time
        found = chunked_attention(queries, key, rule, most_logits)
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("window", "chunked"), [(None, False), (7, False), (7, True)])
def test_keys_of_a_token_are_counted_by_searching_a_sorted_list(window, chunked):
    """As on a GPU: two texts of different lengths, one after the other."""
    ids = torch.randint(0, 5, (80,), generator=torch.Generator().manual_seed(3))
    start = torch.tensor([0] * 50 + [50] * 30)
    position = torch.tensor([*range(50), *range(30)])
    low = AttentionRule(1.0, None, window, chunked).first_visible(position)
    duplicates, inductions = TextTokens(ids).counts(start, position, low)
    for row, (first, i) in enumerate(zip(start.tolist(), position.tolist(), strict=True)):
        token, begin = ids[first:].tolist(), int(low[row])
        assert duplicates[row] == sum(token[j] == token[i] for j in range(begin, i))
        after = range(max(1, begin), i + 1)
        assert inductions[row] == sum(token[j - 1] == token[i] for j in after)


WORK = {
    "kernel": (columns_of_queries.kernel_works, (torch.float64, 48, 4)),
    "received_kernel": (received.kernel_works, (torch.float64, 48)),
}


@pytest.mark.parametrize("kernel", WORK)
def test_plain_torch_is_used_where_the_kernel_cannot_run(kernel):
    """Without Triton, or without a GPU, the trial of the kernel fails; a bug of ours is shown."""
    works, sizes = WORK[kernel]
    with pytest.warns(RuntimeWarning, match="plain torch is used"):
        assert not works(torch.device("cpu"), *sizes)
    module = ModuleType(f"qk_sniffer.attention.{kernel}")
    vars(module)["kernel_attention"] = vars(module)["kernel_received"] = in_float32
    works.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        with pytest.raises(TypeError, match="in_float32"):  # has fewer arguments
            works(torch.device("cpu"), *sizes)
