"""The rows of ranks with some of the heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fake_engine import K_HEADS, LAYER, Q_HEADS, FakeEngine
from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_sniffer.config import CaptureSettings
from qk_sniffer.engines.engine import LayerCall
from qk_sniffer.rows.plan import RowPlan, texts_of_forward
from qk_sniffer.rows.taker import RowTaker
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.heads import choose_heads
from qk_sniffer.sampling.positions import PositionSampler
from qk_sniffer.vllm.text_calls import Share, TextCalls
from qk_toolkit.errors import ToolkitError

IDS = [int(number) for number in np.random.default_rng(0).integers(3, 9, 53)]
TEXT = 7
ALL = slice(None)
LAYERS = [LAYER[kind] for kind in ("full", "window", "soft-cap and window", "learned sinks")]


def plan_of(engine: FakeEngine, heads: list[int] | None = None) -> RowPlan:
    wanted = choose_heads(engine.layout, CaptureSettings(layers=LAYERS, heads=heads))
    sampler = PositionSampler("uniform", 8, 3.0, seed=4)
    return RowPlan(wanted, sampler, True, True, AttendedSampler(6, 9))


def whole(engine: FakeEngine, plan: RowPlan) -> dict[HeadId, Rows]:
    taker = RowTaker(plan)
    taker.expect(texts_of_forward(plan, [TEXT], [IDS]))
    engine.run([IDS], taker)
    return taker.take().rows()


def add_call(calls: TextCalls, call: LayerCall, share: Share, tokens: slice = ALL) -> None:
    """Give a call, or some of its tokens, with the heads of a rank."""
    q, k = slice(share.q.start, share.q.stop), slice(share.k.start, share.k.stop)
    sinks = None if call.rule.sinks is None else call.rule.sinks[q]
    parts = call.query[tokens, q], call.key[tokens, k], call.value[tokens, k]
    calls.add(call.layer, tokens.start or 0, *parts, sinks)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("heads", [None, [3]])
def test_ranks_give_the_rows_of_the_model(heads: list[int] | None, ranks: int) -> None:
    engine = FakeEngine()
    plan = plan_of(engine, heads)
    expected = whole(engine, plan)
    found: dict[HeadId, Rows] = {}
    for rank in range(ranks):
        share = Share.of(rank, ranks, Q_HEADS, K_HEADS)
        calls = TextCalls(share.of_plan(plan), TEXT, IDS)
        for layer in LAYERS:
            add_call(calls, engine.calls[layer], share)
        new = share.numbered(calls.take().rows())
        assert not new.keys() & found.keys()
        found |= new
    assert found.keys() == expected.keys()
    for head, rows in expected.items():
        assert list(found[head].columns) == list(rows.columns)
        for name, values in rows.columns.items():
            exact = name in ("vector", "position", "token_id", "example_id", "argmax_position")
            tolerance = 0 if exact else 2e-6
            np.testing.assert_allclose(found[head][name], values, atol=tolerance, rtol=tolerance)


def test_every_head_belongs_to_one_rank() -> None:
    for q, k in ((8, 8), (8, 4), (8, 2), (8, 1), (32, 2)):
        for ranks in (number for number in (1, 2, 4, 8) if k % number == 0):
            shares = [Share.of(rank, ranks, q, k) for rank in range(ranks)]
            assert [head for share in shares for head in share.q] == [*range(q)]
            assert [head for share in shares for head in share.k] == [*range(k)]
            for share in shares:  # a key head and its queries are in one rank
                assert {head // (q // k) for head in share.q} == {*share.k}


def test_missing_tokens_and_a_request_that_begins_again_are_named() -> None:
    engine = FakeEngine()
    plan, alone = plan_of(engine), Share.of(0, 1, Q_HEADS, K_HEADS)
    whole(engine, plan)
    calls = TextCalls(plan, TEXT, IDS)
    for layer in LAYERS[1:]:
        add_call(calls, engine.calls[layer], alone)
    for part in (slice(0, 20), slice(20, 53)):
        with pytest.raises(ToolkitError, match=f"layer {LAYERS[0]}: .* of 53 tokens in a step"):
            add_call(calls, engine.calls[LAYERS[0]], alone, part)
    with pytest.raises(ToolkitError, match=r"layer 1: .*preempted"):
        add_call(calls, engine.calls[LAYERS[1]], alone)
    with pytest.raises(ToolkitError, match=f"text 7, layer {LAYERS[0]}: vLLM computed no"):
        calls.take()


def test_generated_tokens_and_other_layers_are_left_out() -> None:
    engine = FakeEngine()
    plan, alone = plan_of(engine), Share.of(0, 1, Q_HEADS, K_HEADS)
    expected = whole(engine, plan)
    calls = TextCalls(plan, TEXT, IDS)
    for layer in (*LAYERS, LAYER["chunks"]):
        add_call(calls, engine.calls[layer], alone)
    tokens = torch.ones(1, Q_HEADS, 8), torch.ones(1, K_HEADS, 8), torch.ones(1, K_HEADS, 5)
    calls.add(LAYERS[0], 53, *tokens)
    assert calls.take().rows().keys() == expected.keys()
