"""The rows of texts that come in pieces, and from ranks with some of the heads."""

from __future__ import annotations

from collections.abc import Callable

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
from qk_sniffer.vllm.memory import held_bytes
from qk_sniffer.vllm.shares import share_of
from qk_sniffer.vllm.text_calls import Piece, TextCalls
from qk_toolkit.errors import ToolkitError

IDS = [int(number) for number in np.random.default_rng(0).integers(3, 9, 53)]
TEXT = 7
LAYERS = [LAYER[kind] for kind in ("full", "window", "soft-cap and window", "learned sinks")]


def plan_of(engine: FakeEngine, heads: list[int] | None = None) -> RowPlan:
    wanted = choose_heads(engine.layout, CaptureSettings(layers=LAYERS, heads=heads))
    sampler = PositionSampler("uniform", 8, 3.0, seed=4)
    return RowPlan(wanted, sampler, True, True, AttendedSampler(6, 9), frozenset(LAYERS))


def whole(engine: FakeEngine, plan: RowPlan) -> dict[HeadId, Rows]:
    taker = RowTaker(plan)
    taker.expect(texts_of_forward(plan, [TEXT], [IDS]))
    engine.run([IDS], taker)
    return taker.take().rows()


def piece_of(call: LayerCall, first: int, end: int, q: range, k: range) -> Piece:
    assert call.value is not None
    rows, keys = slice(first, end), slice(k.start, k.stop)
    query = call.query[rows, q.start : q.stop]
    return Piece(first, query, call.key[rows, keys], call.value[rows, keys])


def in_pieces(engine: FakeEngine, plan: RowPlan, ends: list[int], ranks: int) -> dict[HeadId, Rows]:
    found: dict[HeadId, Rows] = {}
    for rank in range(ranks):
        share = share_of(rank, ranks, Q_HEADS, K_HEADS)
        calls = TextCalls(share.of_plan(plan), TEXT, IDS)
        for first, end in zip([0, *ends], ends, strict=False):  # all layers of a piece
            for layer in LAYERS:
                call = engine.calls[layer]
                assert call.rule is not None
                sinks = call.rule.sinks
                if sinks is not None:
                    sinks = sinks[share.q.start : share.q.stop]
                calls.add(layer, piece_of(call, first, end, share.q, share.k), sinks)
        new = share.numbered(calls.take().rows())
        assert not new.keys() & found.keys()
        found |= new
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("ends", [[53], [16, 32, 48, 53], [1, 2, 53]])
@pytest.mark.parametrize("heads", [None, [3]])
def test_pieces_and_ranks_give_the_rows_of_the_whole_text(
    heads: list[int] | None, ends: list[int], ranks: int
) -> None:
    engine = FakeEngine()
    plan = plan_of(engine, heads)
    expected = whole(engine, plan)
    found = in_pieces(engine, plan, ends, ranks)
    assert found.keys() == expected.keys()
    for head, rows in expected.items():
        assert list(found[head].columns) == list(rows.columns)
        for name, values in rows.columns.items():
            exact = name in ("vector", "position", "token_id", "example_id", "argmax_position")
            tolerance = 0 if exact else 2e-6
            np.testing.assert_allclose(found[head][name], values, atol=tolerance, rtol=tolerance)


def test_every_head_belongs_to_one_rank() -> None:
    for q, k in ((8, 8), (8, 4), (8, 2), (8, 1), (32, 2)):
        for ranks in (1, 2, 4, 8):
            shares = [share_of(rank, ranks, q, k) for rank in range(ranks)]
            assert [head for share in shares for head in share.q] == [*range(q)]
            assert [head for share in shares for head in share.k] == [*range(k)]
            for share in shares:  # a key head and its queries are in one rank
                assert {head // (q // k) for head in share.q} == {*share.k}


def calls_of(engine: FakeEngine) -> tuple[TextCalls, Callable[[int, int, int], None]]:
    engine.run([IDS], RowTaker(plan_of(engine)))
    calls = TextCalls(plan_of(engine), TEXT, IDS)

    def add(layer: int, first: int, end: int) -> None:
        call = engine.calls[layer]
        sinks = call.rule.sinks if call.rule else None
        calls.add(layer, piece_of(call, first, end, range(Q_HEADS), range(K_HEADS)), sinks)

    return calls, add


def test_missing_tokens_and_a_request_that_begins_again_are_named() -> None:
    calls, add = calls_of(FakeEngine())
    for layer in LAYERS[1:]:
        add(layer, 0, 53)
    with pytest.raises(ToolkitError, match=f"text 7, layer {LAYERS[0]}: .* 0 of 53 tokens"):
        calls.take()
    add(LAYERS[0], 0, 20)
    with pytest.raises(ToolkitError, match=f"layer {LAYERS[0]}: .* 20 of 53 tokens"):
        calls.take()
    with pytest.raises(ToolkitError, match=r"text 7, layer 0: .*positions 20 to 29"):
        add(LAYERS[0], 30, 53)
    with pytest.raises(ToolkitError, match=r"text 7, layer 0: .*0 again after 20 .*preempted"):
        add(LAYERS[0], 0, 53)


def test_generated_tokens_and_other_layers_are_left_out() -> None:
    engine = FakeEngine()
    expected = whole(engine, plan_of(engine))
    calls, add = calls_of(engine)
    for layer in (*LAYERS, LAYER["chunks"]):
        add(layer, 0, 53)
    tokens = torch.ones(1, Q_HEADS, 8), torch.ones(1, K_HEADS, 8), torch.ones(1, K_HEADS, 5)
    calls.add(LAYERS[0], Piece(53, *tokens))
    found = calls.take().rows()
    assert found.keys() == expected.keys()


def test_bytes_that_are_held() -> None:
    """Counted from the tensors that a piece makes room for."""
    engine = FakeEngine()
    plan = plan_of(engine)
    whole(engine, plan)
    tensors = []
    for layer in LAYERS:
        piece = piece_of(engine.calls[layer], 0, 5, range(Q_HEADS), range(K_HEADS))
        room = piece.with_norms().room(53)
        tensors += [room.query, room.key, room.value]
    assert held_bytes(plan, 53, 4) == sum(one.numel() * one.element_size() for one in tensors)
