"""The row of a key head, from the counts of its query heads: loops over pairs and queries."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attention_plasticity as ap
from attention_dumps import make_attention_dump
from attention_plasticity.estimate.quantity import Quantity
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure import key_heads
from attention_plasticity.measure.attention import INSIDE_LAST_BIN
from attention_plasticity.measure.found import FEW_GROUPS
from attention_plasticity.measure.key_heads import (
    FEW_QUERIES,
    NO_PAIRS,
    key_head_row,
)
from attention_plasticity.measure.result import KeyHeadRow
from attention_plasticity.measure.streams import Purpose, Streams
from attention_plasticity.measure.text_pairs import placed_pairs, text_pairs
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.read.layer import NO_COLUMNS
from attention_plasticity.read.pool import NO_ATTENDED_KEYS, read_pool
from attention_plasticity.read.rows import Keys, read_keys
from dumps import add_rotary, make_dump
from listed_choices import Choices, listed_error, listed_plasticity
from reference import Rows, read_rows
from reference_checks import influences_of
from reference_groups import Expected, layer_facts, leave_out, turned


def row_of(
    root: Path, q_heads: int, layer: int = 0, k_head: int = 0, **settings: Any
) -> KeyHeadRow:
    """The row of a key head whose query heads are the first ones."""
    opened, config = ap.open_dump(root), ap.make_config(**settings)
    row = key_head_row([ap.analyze_head(layer, q, k_head, opened, config) for q in range(q_heads)])
    assert row is not None
    assert_reasons(row)
    return row


def assert_reasons(row: KeyHeadRow) -> None:
    """Every missing value has a reason, and no other value."""
    assert set(row.values) == set(KEY_HEADS.names)
    with_error = {name for one in KEY_HEADS.with_error for name in (one, f"{one}_se")}
    assert {name for name in with_error if math.isnan(row.values[name])} == set(row.missing)
    assert all(row.missing.values())


def assert_equal(found: Quantity, expected: Expected, atol: float = 1e-9) -> None:
    np.testing.assert_allclose(found.value, expected.value, rtol=0, atol=atol)
    np.testing.assert_allclose(found.influences, expected.influences, rtol=0, atol=atol)
    assert found.groups == expected.groups


def sees(t: float, key: float, window: int | None, *, chunked: bool) -> bool:
    if window is None:
        return key < t
    return key < t and (key // window == t // window if chunked else t - key < window)


class Loops:
    """What later queries choose, query by query."""

    def __init__(self, root: Path, window: int | None = None, *, chunked: bool = False) -> None:
        self.config, self.window, self.chunked = ap.make_config(), window, chunked
        self.dump = ap.open_dump(root)
        self.keys = read_keys(self.dump, 0, 0, self.config)
        self.queries = [read_rows(root, f"l00h{q:02d}q", self.config) for q in range(2)]
        self.visible = Visible(window, chunked)

    def rng(self, purpose: Purpose) -> np.random.Generator:
        return Streams(self.config.seed, 0, 0).rng(purpose)

    def choices(self, keys: Keys, i: int, j: int) -> Choices:
        """Of the later queries of every head that see both keys."""
        found: Choices = []
        places = [float(keys.position[one]) for one in (i, j)]
        for head in self.queries:
            own = []
            for q, t, text in zip(head.vectors, head.position, head.example_id, strict=True):
                if text == keys.text[i] and all(
                    sees(t, place, self.window, chunked=self.chunked) for place in places
                ):
                    one, other = (float(q @ keys.rows.vectors[key]) for key in (i, j))
                    own.append(0.5 if one == other else float(one > other))
            found.append(own)
        return found

    def check(self, row: KeyHeadRow, keys: Keys, weight: np.ndarray, purpose: Purpose) -> int:
        """Compare with the values of the pairs that the package draws; returns their number."""
        pairs = text_pairs(keys, weight, self.visible, 2048, self.rng(purpose))
        values: list[tuple[int, Choices]] = []
        for i, j in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True):
            assert i != j
            assert keys.text[i] == keys.text[j]
            chosen = self.choices(keys, i, j)
            if min(map(len, chosen)) >= 2:
                values.append((int(keys.text[i]) % 16, chosen))
        start = "attended_" if purpose == Purpose.ATTENDED_TEXT_PAIRS else ""
        scores: dict[str, Callable[[Choices], float]] = {
            "plasticity": listed_plasticity,
            "static_error": listed_error,
        }
        for name, score in scores.items():
            of_group = [(g, score(chosen)) for g, chosen in values]
            alone = [(g, float(np.mean([score([one]) for one in c]))) for g, c in values]
            for ending, found in (("", of_group), ("_heads", alone)):
                expected = leave_out(
                    lambda keeps, found=found: float(np.mean([v for g, v in found if keeps(g)])),
                    {g for g, _ in found},
                )
                assert_equal(row.quantities[f"{start}{name}{ending}"], expected)
        return len(values)


@pytest.mark.parametrize(("window", "chunked"), [(None, False), (300, False), (512, True)], ids=str)
def test_pairs_and_queries_against_a_loop(
    tmp_path: Path, window: int | None, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_heads, "_MOST_PLACED", 150)
    kind = (
        "chunked_attention" if chunked else "full_attention" if not window else "sliding_attention"
    )
    make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=130, examples=16, window=window)
    add_rotary(tmp_path, type=kind, window=window)
    row, loops = row_of(tmp_path, 2), Loops(tmp_path, window, chunked=chunked)
    number = loops.check(row, loops.keys, loops.keys.weight, Purpose.TEXT_PAIRS)
    assert row.values["n_pairs"] == number > 20
    assert row.values["n_groups"] >= 8
    assert row.missing["attended_plasticity"] == NO_ATTENDED_KEYS
    assert row.missing["far_mass"] == NO_COLUMNS
    check_placed(row, loops, tmp_path)


def check_placed(row: KeyHeadRow, loops: Loops, root: Path) -> None:
    """Plasticity at one position: all queries of a bin are turned to the token of the pair."""
    keys, bins = loops.keys, loops.keys.texts.bins
    assert bins is not None
    pairs = placed_pairs(keys, loops.visible, 150, loops.rng(Purpose.PLACED_PAIRS))
    record = layer_facts(root, 0).get("rotary")
    listed = []  # group of the pair, then groups and choices of the queries of each head
    for i, j, t in zip(pairs.first, pairs.second, pairs.position, strict=True):
        assert all(
            sees(t, keys.position[one], loops.window, chunked=loops.chunked) for one in (i, j)
        )
        if loops.window is None and t < bins.size:
            continue  # the first bin has no queries that see an earlier one
        w = keys.rows.vectors[i].astype(float) - keys.rows.vectors[j]
        heads = [placed_choices(head, bins.size, float(t), w, record) for head in loops.queries]
        listed.append((int(keys.text[i]) % 16, heads))
    found = []
    for used in ([0, 1], [0], [1]):
        groups = {int(g) for _, heads in listed for one in used for g in heads[one][0]}
        found.append(leave_out(partial(placed_mean, listed, used), groups))
    assert_equal(row.quantities["aligned_plasticity"], found[0], 1e-6)
    alone = row.quantities["aligned_plasticity_heads"]
    assert alone.value == pytest.approx(np.mean([one.value for one in found[1:]]), abs=1e-6)
    influences = np.mean([one.influences for one in found[1:]], axis=0)
    np.testing.assert_allclose(alone.influences, influences, atol=1e-6)


def placed_choices(
    head: Rows, size: int, t: float, w: np.ndarray, record: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Groups of the queries in the bin of t, and whether each prefers the first key."""
    own = np.floor(head.position / size) == math.floor(t / size)
    if own.sum() < 2:
        return np.zeros(0, int), np.zeros(0)
    Q = turned(head.vectors[own], t - head.position[own], record)
    return head.example_id[own] % 16, 0.5 * (1 + np.sign(Q @ w))


def placed_mean(listed: Any, used: list[int], keeps: Callable[[int], bool]) -> float:
    """Mean over pairs of twice the chance that two queries of different groups disagree."""
    values = []
    for of_pair, heads in listed:
        if not keeps(of_pair):
            continue
        kept = []
        for number in used:
            group, prefers = heads[number]
            inside = np.array([keeps(int(g)) for g in group], bool)
            kept.append((group[inside], prefers[inside]))
        disagree = []
        for (g, a), (h, b) in product(kept, repeat=2):
            differ = g[:, None] != h[None, :]
            both = a[:, None] * (1 - b[None, :])
            disagree.append(both[differ].mean() if differ.any() else math.nan)
        values.append(4.0 * float(np.mean(disagree)))
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known))


def test_attended_pairs_against_a_loop(tmp_path: Path) -> None:
    """Keys in proportion to the attention of both heads of the group over their inclusion."""
    root = make_attention_dump(tmp_path, q_heads=2, share=0.35, received=True, texts=5, length=40)
    row, loops = row_of(root, 2, distant_from=8), Loops(root)
    pool = read_pool(loops.dump, 0, 0, loops.keys, loops.config)
    assert pool is not None
    weight = np.where(pool.keys.position >= 4, pool.received.sum(axis=1), 0.0) * pool.keys.weight
    number = loops.check(row, pool.keys, weight.astype(float), Purpose.ATTENDED_TEXT_PAIRS)
    assert row.values["n_attended_pairs"] == number > 50
    assert 0 < row.values["received_half"] < 0.5
    assert 0 < row.values["received_gini"] < 1
    config = ap.make_config(distant_from=8)
    heads = [ap.analyze_head(0, head, 0, loops.dump, config) for head in range(2)]
    far = [influences_of(head)["attn_far_mass", None] for head in heads]
    assert row.values["far_mass"] == pytest.approx(np.mean([one["value"] for one in far]))
    influences = np.mean([[one[f"group_{g:02d}"] for g in range(16)] for one in far], axis=0)
    np.testing.assert_allclose(row.quantities["far_mass"].influences, influences, atol=1e-12)


def test_missing_values_have_reasons(tmp_path: Path) -> None:
    make_dump(tmp_path / "alone", layers=1, q_heads=2, k_heads=1, n=60, examples=60)
    row = row_of(tmp_path / "alone", 2)
    assert row.missing["static_error"] in (FEW_QUERIES, NO_PAIRS)
    config = ap.make_config(single_example=True)
    head = ap.analyze_head(0, 0, 0, ap.open_dump(tmp_path / "alone"), config)
    assert key_head_row([head]) is None
    few = make_attention_dump(tmp_path / "few", texts=3, received=True, bins=4)
    row = row_of(few, 1)
    for name in ("plasticity", "attended_static_error", "received_gini"):
        assert math.isfinite(row.values[name])
        assert row.missing[f"{name}_se"] == FEW_GROUPS
    assert row.missing["far_mass"] == INSIDE_LAST_BIN
    assert "add-rotary" in row.missing["aligned_plasticity"]


def test_records_keep_large_counts() -> None:
    """One bin of a long dump has more than 65,535 queries."""
    counts = np.array([0, 65_536, 4_000_000])
    assert np.array_equal(key_heads._numbers(key_heads._text(counts)), counts)
