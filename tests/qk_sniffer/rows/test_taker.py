"""Rows and drawn keys from packed attention calls of a fake engine, against plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fake_engine import (
    DEVICES,
    GROUP,
    K_HEADS,
    KINDS,
    KNOWN,
    LAYER,
    Q_HEADS,
    WIDTH,
    FakeEngine,
    attention_by_loops,
)
from qk_dump.columns import MASS_BINS, RECEIVED_COLUMNS
from qk_dump.heads import HeadId
from qk_dump.rows import Rows
from qk_sniffer.attention import received
from qk_sniffer.config import CaptureSettings
from qk_sniffer.rows.host_rows import HostRows, empty_rows
from qk_sniffer.rows.plan import RowPlan, texts_of_forward
from qk_sniffer.rows.taker import RowTaker
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.heads import choose_heads
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.errors import ToolkitError

SOME = PositionSampler("uniform", 8, 4.0, seed=4)  # a half of all positions
TEXTS = [[int(n) for n in np.random.default_rng(s).integers(3, 9, s)] for s in (40, 23, 3)]
EXAMPLES = (5, 6, 9)


def plan_of(engine: FakeEngine, heads: dict[str, Any] | None = None, **changes: Any) -> RowPlan:
    wanted = choose_heads(engine.layout, CaptureSettings(**(heads or {})))
    settings = {"sampler": SOME, "attention": True, "tokens": True, **changes}
    return RowPlan(wanted, **settings)


def taken(
    engine: FakeEngine,
    plan: RowPlan,
    texts: Sequence[Sequence[int]] = TEXTS,
    examples: Sequence[int] = EXAMPLES,
    max_rows: int = 65_536,
) -> HostRows:
    taker = RowTaker(plan, max_rows)
    taker.expect(texts_of_forward(plan, examples, texts))
    engine.run(texts, taker)
    return taker.take()


def assert_same(one: dict[HeadId, Rows], other: dict[HeadId, Rows]) -> None:
    assert list(one) == list(other)
    for head, rows in one.items():
        assert list(rows.columns) == list(other[head].columns)
        for name, values in rows.columns.items():
            np.testing.assert_array_equal(values, other[head][name], f"{head} {name}")
            assert values.dtype == other[head][name].dtype


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_every_row_has(kind: str, device: str) -> None:
    engine, layer = FakeEngine(device=device), LAYER[kind]
    rows_by_head = taken(engine, plan_of(engine)).rows()
    call, starts = engine.calls[layer], np.cumsum([0, 40, 23])
    for letter, tensor in (("q", call.query), ("k", call.key)):
        for number in range(tensor.shape[1]):
            rows = rows_by_head[HeadId(layer, number, letter)]
            kept = [
                (text, position)
                for text, (example, ids) in enumerate(zip(EXAMPLES, TEXTS, strict=True))
                for position in SOME.positions(len(ids), example=example, layer=layer, kind=letter)
            ]
            assert 20 < len(rows) == len(kept) < 50
            assert rows["example_id"].tolist() == [EXAMPLES[text] for text, _ in kept]
            assert rows["position"].tolist() == [position for _, position in kept]
            assert rows["bucket"].tolist() == [position // 8 for _, position in kept]
            assert rows["token_id"].tolist() == [TEXTS[text][i] for text, i in kept]
            assert set(rows["sliding_window"]) == {KINDS[kind].get("window", -1)}
            places = [int(starts[text]) + position for text, position in kept]
            np.testing.assert_array_equal(rows["vector"], tensor[places, number].cpu().numpy())
            if letter == "k" and call.value is not None:
                values = call.value[places, number].double().cpu().numpy()  # (n, d)
                lengths = np.sqrt((values**2).sum(axis=1))
                np.testing.assert_allclose(rows["value_norm"], lengths, rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KNOWN)
def test_attention_columns_are_sums_over_pairs_of_queries_and_keys(kind: str, device: str) -> None:
    engine, layer = FakeEngine(device=device), LAYER[kind]
    rows_by_head = taken(engine, plan_of(engine)).rows()
    for head in range(Q_HEADS):
        rows, start = rows_by_head[HeadId(layer, head, "q")], 0
        for example, ids in zip(EXAMPLES, TEXTS, strict=True):
            own = attention_by_loops(engine.calls[layer], head, start, len(ids))
            for row in np.flatnonzero(rows["example_id"] == example):
                i = int(rows["position"][row])
                check_row({name: values[row] for name, values in rows.columns.items()}, own, i, ids)
            start += len(ids)


def check_row(row: dict[str, Any], own: Any, i: int, ids: Sequence[int]) -> None:
    logits, w = own.logits[i], own.weights[i]  # (s,)
    seen = [j for j in range(i + 1) if not np.isnan(logits[j])]
    best = min(seen, key=lambda j: (-logits[j], j))
    assert row["max_logit"] == pytest.approx(logits[best], abs=1e-5)
    assert np.exp(row["max_logit"] - row["lse"]) == pytest.approx(w[best], abs=1e-5)
    assert row["entropy"] == pytest.approx(-sum(w[j] * np.log(w[j]) for j in seen), abs=1e-4)
    assert row["sink_mass"] == pytest.approx(sum(w[:4]), abs=1e-5)
    assert row["first_mass"] == pytest.approx(w[0], abs=1e-5)
    by_distance = [0.0] * MASS_BINS  # 0, 1, 2–3, 4–7, …
    for j in seen:
        by_distance[(i - j).bit_length()] += w[j]
    assert row["mass_by_distance"] == pytest.approx(by_distance, abs=1e-5)
    assert row["argmax_position"] == best
    assert row["argmax_token"] == ids[best]
    duplicates = [j for j in seen if j < i and ids[j] == ids[i]]
    inductions = [j for j in seen if j > 0 and ids[j - 1] == ids[i]]
    for name, keys in (("duplicate", duplicates), ("induction", inductions)):
        assert row[f"{name}_keys"] == len(keys)
        assert row[f"{name}_mass"] == pytest.approx(sum(w[j] for j in keys), abs=1e-5)


def test_attention_that_is_not_known_is_null() -> None:
    engine = FakeEngine()
    rows = taken(engine, plan_of(engine, attended=AttendedSampler(3)))
    layer = LAYER["not known"]
    assert rows.known_attention == {*LAYER.values()} - {layer}
    for head, found in rows.rows().items():
        if head.layer == layer:
            assert not head.attended
            unknown = set(found.columns) - {"bucket", "example_id", "position", "vector"}
            for name in unknown - {"sliding_window", "token_id", "inclusion"}:
                values = found[name]
                assert np.isnan(values).all() if values.dtype.kind == "f" else (values == -1).all()


def test_a_row_does_not_depend_on_other_texts_heads_or_pieces() -> None:
    engine = FakeEngine()
    attended = AttendedSampler(number=6, queries=16, seed=2)
    together = taken(engine, plan_of(engine, attended=attended)).rows()
    for max_rows in (1, 7, 31):
        again = taken(engine, plan_of(engine, attended=attended), max_rows=max_rows).rows()
        assert_same(again, together)
    text = {head: rows[rows["example_id"] == EXAMPLES[1]] for head, rows in together.items()}
    alone = taken(engine, plan_of(engine, attended=attended), TEXTS[1:2], EXAMPLES[1:2]).rows()
    bias = LAYER["selected keys"]  # depends on the longest text in this engine
    assert_same(*({h: r for h, r in one.items() if h.layer != bias} for one in (alone, text)))
    wanted = {"layers": [1, 4], "heads": [1, 3]}
    some = taken(engine, plan_of(engine, wanted, attended=attended)).rows()
    assert {(head.layer, head.head) for head in some if head.kind == "q"} == {
        *((layer, head) for layer in (1, 4) for head in (1, 3))
    }
    assert_same(some, {head: together[head] for head in some})
    keys = taken(engine, plan_of(engine, {"capture_queries": False}, attended=attended))
    assert_same(keys.rows(), {h: rows for h, rows in together.items() if h.kind == "k"})
    assert keys.known_attention == {LAYER[kind] for kind in KNOWN}


def test_stored_vectors_may_be_others_than_those_that_attend() -> None:
    apart, usual = FakeEngine(stored_apart=True), FakeEngine()
    found, expected = (
        taken(engine, plan_of(engine, attended=AttendedSampler(5))).rows()
        for engine in (apart, usual)
    )
    for head, rows in expected.items():
        assert_same({head: found[head]}, {head: rows.with_columns({"vector": rows["vector"] + 1})})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_exactly(dtype: torch.dtype) -> None:
    engine = FakeEngine(dtype=dtype)
    plan = plan_of(engine, sampler=PositionSampler("all"), attended=AttendedSampler(5))
    for head, rows in taken(engine, plan).rows().items():
        assert rows["vector"].dtype == np.float32
        if not head.attended:
            call = engine.calls[head.layer]
            tensor = call.query if head.kind == "q" else call.key
            np.testing.assert_array_equal(rows["vector"], tensor[:, head.head].float().numpy())


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("attention", [False, True])
def test_columns_of_a_plan(attention: bool, tokens: bool) -> None:
    """Also of a forward without a kept position, and of no forward at all."""
    engine = FakeEngine()
    sampler = AttendedSampler(3) if attention else None
    plan = plan_of(engine, attention=attention, tokens=tokens, attended=sampler)
    rare = plan_of(
        engine, attention=attention, tokens=tokens, sampler=PositionSampler("uniform", 2**40)
    )
    nothing, nobody = taken(engine, rare).rows(), taken(engine, plan, [], []).rows()
    found = taken(engine, plan).rows()
    assert sorted(found) == sorted(plan.heads())
    for head, rows in found.items():
        assert len(nobody[head]) == len(empty_rows(plan, head)) == 0
        others = [nobody[head], empty_rows(plan, head)]
        if not head.attended:
            assert len(nothing[head]) == 0
            assert set(rows.columns) - set(nothing[head].columns) <= set(RECEIVED_COLUMNS)
        for other in others:
            assert list(other.columns) == list(rows.columns)
            for name, values in rows.columns.items():
                assert other[name].shape[1:] == values.shape[1:]
                assert other[name].dtype.kind == values.dtype.kind
        assert rows["vector"].shape[1] == WIDTH
        assert ("token_id" in rows) == tokens
        assert ("value_norm" in rows) == (attention and head.kind == "k")
        assert ("lse" in rows) == (attention and head.kind == "q")
        assert ("induction_mass" in rows) == (attention and tokens and head.kind == "q")
        assert ("received" in rows) == (attention and head.kind == "k")
        if "received" in rows:
            assert rows["received"].shape[1] == GROUP
    heads = K_HEADS * len(KNOWN) if attention else 0
    assert sum(head.attended for head in found) == heads


def test_a_forward_gives_its_own_rows_once() -> None:
    engine = FakeEngine()
    plan = plan_of(engine)
    taker = RowTaker(plan)
    with pytest.raises(ValueError, match="no forward was expected"):
        taker.take()
    engine.run(TEXTS, taker)  # not expected
    taker.expect(texts_of_forward(plan, [1], TEXTS[:1]))
    engine.run(TEXTS[:1], taker)  # dropped by the next line
    taker.expect(texts_of_forward(plan, EXAMPLES, TEXTS))
    engine.run(TEXTS, taker)
    engine.run(TEXTS[::-1], taker)  # a layer's first call counts
    found = taker.take()
    assert found.missing == []
    assert_same(found.rows(), taken(engine, plan).rows())
    taker.expect(texts_of_forward(plan, EXAMPLES, TEXTS))
    taker.on_call(engine.calls[2])
    assert taker.take().missing == [0, 1, 3, 4, 5, 6]
    taker.expect(None)
    engine.run(TEXTS, taker)
    with pytest.raises(ValueError, match="no forward was expected"):
        taker.take()


class Copies(TorchFunctionMode):
    """Remembers of every copy whether it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[bool] = []

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function is Tensor.copy_:
            self.waiting.append(not (options or {}).get("non_blocking", False))
        return function(*arguments, **(options or {}))


def test_copies_wait_on_devices_other_than_cuda() -> None:
    """The CPU stands for MPS and XPU, which no test machine has: only CUDA has our events."""
    engine = FakeEngine()
    with Copies() as copies:
        taken(engine, plan_of(engine, attended=AttendedSampler(3)), max_rows=7)
    assert len(copies.waiting) > 50
    assert all(copies.waiting)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rows_are_taken_while_the_next_forward_runs_on_a_gpu() -> None:
    engine = FakeEngine(device="cuda")
    plan = plan_of(engine, attended=AttendedSampler(6))
    orders = [(TEXTS, EXAMPLES), (TEXTS[::-1], EXAMPLES[::-1]), (TEXTS * 20, tuple(range(60)))]
    found = [taken(engine, plan, texts, examples, max_rows=10) for texts, examples in orders]
    for rows, (texts, examples) in zip(found, orders, strict=True):
        again = taken(engine, plan, texts, examples)
        torch.cuda.synchronize()
        assert_same(rows.rows(), again.rows())


DRAWN_TEXTS = [[int(n) for n in np.random.default_rng(s).integers(3, 9, s)] for s in (61, 40, 3)]


def drawn_rows(
    engine: FakeEngine, attended: AttendedSampler, texts: Any = DRAWN_TEXTS, **heads: Any
) -> dict[HeadId, Any]:
    wanted = choose_heads(engine.layout, CaptureSettings(**heads))
    plan = RowPlan(wanted, PositionSampler("uniform", 8, 2.0, seed=1), True, True, attended)
    taker = RowTaker(plan)
    taker.expect(texts_of_forward(plan, range(len(texts)), texts))
    engine.run(texts, taker)
    return taker.take().rows()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("queries", [7, 64])
@pytest.mark.parametrize("kind", KNOWN)
def test_what_keys_receive_is_the_mean_weight_of_evenly_spaced_queries(
    kind: str, queries: int, device: str
) -> None:
    engine, sampler = FakeEngine(device=device), AttendedSampler(number=6, queries=queries, seed=3)
    found, layer, start = drawn_rows(engine, sampler), LAYER[kind], 0
    for text, ids in enumerate(DRAWN_TEXTS):
        measuring = sampler.query_positions(len(ids), engine.layout[layer].window)
        for key_head in range(K_HEADS):
            heads = [key_head * GROUP + member for member in range(GROUP)]
            own = [attention_by_loops(engine.calls[layer], head, start, len(ids)) for head in heads]
            mean = [one.weights[measuring].sum(axis=0) / len(measuring) for one in own]  # (s,)
            base = found[HeadId(layer, key_head, "k")]
            drawn = found[HeadId(layer, key_head, "k", attended=True)]
            base, drawn = (rows[rows["example_id"] == text] for rows in (base, drawn))
            for rows in (base, drawn):
                expected = np.stack([one[rows["position"]] for one in mean], axis=1)  # (n, group)
                np.testing.assert_allclose(rows["received"], expected, atol=2e-6)
                places = start + rows["position"]
                keys = engine.calls[layer].key[places, key_head].cpu().numpy()
                np.testing.assert_array_equal(rows["vector"], keys)
                assert rows["token_id"].tolist() == [ids[i] for i in rows["position"]]
            both = [*base["position"], *drawn["position"]]
            assert len(both) == len(set(both))
            assert {*range(min(4, len(ids)))} <= set(both)  # the first tokens are always drawn
            assert (np.diff(drawn["position"]) > 0).all()
            check_probabilities(base, drawn, sum(mean), sampler.number)
        start += len(ids)


def check_probabilities(base: Any, drawn: Any, weights: Any, number: int) -> None:
    """In proportion to the weights, at most 1, with a sum of `number` besides the first tokens."""
    low, high = 0.0, 1e9
    for _ in range(200):  # the factor, by bisection
        factor = (low + high) / 2
        low, high = (
            (factor, high) if np.minimum(1, factor * weights[4:]).sum() < number else (low, factor)
        )
    chance = np.minimum(1, high * weights)
    chance[:4] = 1
    for rows in (base, drawn):
        expected = [1 - (1 - 2 / 8) * (1 - chance[i]) for i in rows["position"]]
        np.testing.assert_allclose(rows["inclusion"], expected, atol=1e-4)


def test_a_key_is_kept_as_often_as_its_inclusion_says() -> None:
    """The same text many times, with other numbers."""
    times, ids, layers = 200, DRAWN_TEXTS[1][:24], [LAYER["full"], LAYER["chunks"]]
    texts, sampler = [ids] * times, AttendedSampler(number=3)
    found = drawn_rows(FakeEngine(), sampler, texts, layers=layers, capture_queries=False)
    for layer in layers:
        for head in range(K_HEADS):
            base, drawn = (found[HeadId(layer, head, "k", attended=way)] for way in (False, True))
            position = np.append(base["position"], drawn["position"])
            inclusion = np.append(base["inclusion"], drawn["inclusion"])
            for place in range(len(ids)):
                chance = inclusion[position == place]
                assert np.ptp(chance) < 1e-6
                spread = 5 * np.sqrt(times * chance[0] * (1 - chance[0]))
                assert abs(len(chance) - times * chance[0]) <= spread + 1e-6


def test_blocks_of_queries_and_heads_do_not_change_what_keys_receive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, sampler = FakeEngine(), AttendedSampler(number=6, queries=20)
    whole = drawn_rows(engine, sampler)
    for limits in ({"_MOST_LOGITS": 300}, {"_MOST_KEYS": 1 << 20}):
        for name, limit in limits.items():
            monkeypatch.setattr(received, name, {"other": limit})
        for head, rows in drawn_rows(engine, sampler).items():
            if "received" in rows:
                expected = whole[head]["received"]
                np.testing.assert_allclose(rows["received"], expected, rtol=1e-5, atol=1e-7)


def test_more_drawn_keys_than_places_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttendedSampler, "capacity", lambda self, length: min(length, 5))
    told = "keys of a text were drawn by attention, but there is room for 5. Choose another"
    with pytest.raises(ToolkitError, match=told):
        drawn_rows(FakeEngine(), AttendedSampler(number=20))
