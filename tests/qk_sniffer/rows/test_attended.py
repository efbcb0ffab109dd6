"""Keys drawn by the attention that they receive, from a fake engine, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fake_engine import DEVICES, GROUP, K_HEADS, KNOWN, LAYER, FakeEngine, attention_by_loops
from qk_dump.heads import HeadId
from qk_sniffer.attention import received
from qk_sniffer.config import CaptureSettings
from qk_sniffer.rows.plan import RowPlan, texts_of_forward
from qk_sniffer.rows.taker import RowTaker
from qk_sniffer.sampling.attended_keys import AttendedSampler
from qk_sniffer.sampling.heads import choose_heads
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.errors import ToolkitError

TEXTS = [[int(n) for n in np.random.default_rng(s).integers(3, 9, s)] for s in (61, 40, 3)]


def rows_of(
    engine: FakeEngine, attended: AttendedSampler, texts: Any = TEXTS, **heads: Any
) -> dict[HeadId, Any]:
    wanted = choose_heads(engine.layout, CaptureSettings(**heads))
    base, layers = PositionSampler("uniform", 8, 2.0, seed=1), [LAYER[kind] for kind in KNOWN]
    plan = RowPlan(wanted, base, True, True, attended, frozenset(layers))
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
    found, layer, start = rows_of(engine, sampler), LAYER[kind], 0
    for text, ids in enumerate(TEXTS):
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
    times, ids, layers = 200, TEXTS[1][:24], [LAYER["full"], LAYER["chunks"]]
    texts, sampler = [ids] * times, AttendedSampler(number=3)
    found = rows_of(FakeEngine(), sampler, texts, layers=layers, capture_queries=False)
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
    whole = rows_of(engine, sampler)
    for limits in ({"_MOST_LOGITS": 300}, {"_MOST_KEYS": 1 << 20}):
        for name, limit in limits.items():
            monkeypatch.setattr(received, name, {"other": limit})
        for head, rows in rows_of(engine, sampler).items():
            if "received" in rows:
                expected = whole[head]["received"]
                np.testing.assert_allclose(rows["received"], expected, rtol=1e-5, atol=1e-7)


def test_more_drawn_keys_than_places_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttendedSampler, "capacity", lambda self, length: min(length, 5))
    told = "keys of a text were drawn by attention, but there is room for 5. Choose another"
    with pytest.raises(ToolkitError, match=told):
        rows_of(FakeEngine(), AttendedSampler(number=20))
