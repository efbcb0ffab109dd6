"""The key pairs of bins: which pairs are possible, and how often each is drawn."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pytest

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure import bin_pairs as package
from attention_plasticity.measure.bin_pairs import BinPairs, SortedKeys, attended_pairs, bin_pairs
from attention_plasticity.measure.grid import Grid
from attention_plasticity.read.bins import Bins
from attention_plasticity.read.layer import Layer
from attention_plasticity.read.rows import Keys, Queries
from attention_plasticity.read.texts import DumpTexts
from helpers.plain_visible import sees
from qk_dump.reader import HeadRows

SIZE, LENGTH, TEXTS = 8, 32, 4
BINS = Bins(SIZE, LENGTH)
Sampling = Literal["bucket", "local", "context"]


def head(seed: int, share: float) -> dict[str, Any]:
    """Rows at some positions of four texts. The vector of row n is (n, n²)."""
    rng = np.random.default_rng(seed)
    text, position = np.nonzero(rng.random((TEXTS, LENGTH)) < share)
    order = rng.permutation(len(text))
    text, position = text[order], position[order].astype(float)
    number = np.arange(float(len(text)))
    vectors = np.stack([number, number**2], axis=1)
    columns = {"bucket": position.astype(int) // SIZE, "position": position}
    rows = HeadRows({**columns, "vector": vectors, "example_id": text}, 31.0)
    weight = rng.integers(1, 4, len(text)).astype(float)
    return {
        "rows": rows,
        "exponent": 0,
        "weight": weight,
        "layer": Layer(),
        "text": text,
        "group": text,
    }


def keys_and_grid(visible: Visible) -> tuple[Keys, Grid]:
    keys = Keys(**head(1, 0.3), texts=DumpTexts(bins=BINS))
    queries = Queries(**head(2, 0.8), window=visible.size, visible=visible, no_errors="")
    return keys, Grid.of([queries], BINS, with_first=visible.is_limited)


def rows_of(pairs: BinPairs) -> list[tuple[int, int]]:
    """The key rows i and j of every pair, from the differences i − j and i² − j²."""
    difference, total = pairs.W[:, 0], pairs.W[:, 1] / pairs.W[:, 0]
    rows = np.rint([(total + difference) / 2, (total - difference) / 2]).astype(int)
    return [(int(i), int(j)) for i, j in rows.T]


def query_weight(grid: Grid, number: int, one: float, other: float, visible: Visible) -> float:
    """Weight of the queries of a bin that see both keys."""
    position, weight = grid.queries.position, grid.queries.weight
    total = 0.0
    for p, w in zip(position, weight, strict=True):
        both = all(sees(p, s, visible) for s in (one, other))
        total += w * (p // SIZE == number) * both
    return total


def chances(
    keys: Keys, grid: Grid, number: int, visible: Visible, sampling: Sampling, reach: float
) -> dict[tuple[int, int], float]:
    """Weight of every possible pair of a bin of queries, by enumeration."""
    found = {}
    for text in range(TEXTS):
        own = [i for i in np.argsort(keys.position, kind="stable") if keys.text[i] == text]
        for (a, i), (b, j) in combinations(enumerate(own), 2):  # i is earlier
            bins = keys.position[[i, j]] // SIZE
            if sampling == "bucket" and bins[0] != bins[1]:
                continue
            if sampling == "local" and b - a > max(1, int(reach * len(own))):
                continue
            if visible.size is None and bins.max() >= number:
                continue
            weight = keys.weight[i] * keys.weight[j]
            if visible.size is not None:
                weight *= query_weight(grid, number, *keys.position[[i, j]], visible)
            if weight > 0:
                found[int(j), int(i)] = float(weight)
    return found


def assert_shares(found: Counter[tuple[int, int]], expected: dict[tuple[int, int], float]) -> None:
    """Check how often each pair is drawn."""
    total, weight = sum(found.values()), sum(expected.values())
    assert set(found) <= set(expected)
    for pair, own in expected.items():
        share = own / weight
        assert abs(found[pair] / total - share) < 5 * math.sqrt(share / total) + 0.01


@pytest.mark.parametrize("sampling", ["bucket", "local", "context"])
@pytest.mark.parametrize(
    "visible", [Visible(), Visible(10), Visible(16, chunked=True)], ids=["full", "window", "chunks"]
)
def test_pairs_are_drawn_by_the_product_of_weights(
    visible: Visible, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a window also by the weight of the queries that see both keys.

    Without a window, the pairs of a cell are drawn together and dealt to the bins of queries.
    """
    monkeypatch.setattr(package, "FEWEST_PAIRS", 1)
    keys, grid = keys_and_grid(visible)
    own = SortedKeys.of(keys, keys.weight, BINS)
    of_bins: list[Counter[tuple[int, int]]] = [Counter() for _ in grid.number]
    of_cells: dict[int, Counter[tuple[int, int]]] = {}
    for seed in range(300):
        pairs = bin_pairs(own, grid, visible, sampling, 0.4, 8, np.random.default_rng(seed))
        rows = rows_of(pairs)
        for place, used in enumerate(pairs.of_bin):
            of_bins[place].update(rows[pair] for pair in used)
        for pair, (later, earlier) in enumerate(rows):
            assert keys.text[later] == keys.text[earlier] == pairs.group[pair]
            assert keys.position[later] >= keys.position[earlier]
            cell = int(keys.position[later] // SIZE)
            assert pairs.cells[pairs.cell[pair]] == cell
            of_cells.setdefault(cell, Counter())[later, earlier] += 1
    assert pairs.of_cells == (visible.size is None and sampling != "context")
    assert len(of_cells) > 1
    for number, found in zip(grid.number.tolist(), of_bins, strict=True):
        expected = chances(keys, grid, number, visible, sampling, 0.4)
        few = visible.is_limited and len({keys.text[pair[0]] for pair in expected}) < TEXTS
        assert bool(found) == (not few)  # a window needs pairs of four texts
        if found and not pairs.of_cells:
            assert_shares(found, expected)
        assert set(found) <= set(expected)
    if pairs.of_cells:
        for cell, found in of_cells.items():
            expected = chances(keys, grid, LENGTH // SIZE, visible, sampling, 0.4)
            inside = {
                pair: w for pair, w in expected.items() if keys.position[pair[0]] // SIZE == cell
            }
            assert_shares(found, inside)


@pytest.mark.parametrize("visible", [Visible(), Visible(10)], ids=["full", "window"])
def test_attended_pairs_have_the_texts_of_the_queries(
    visible: Visible, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In proportion to the weight of the queries of a text in the bin."""
    monkeypatch.setattr(package, "FEWEST_PAIRS", 1)
    keys, grid = keys_and_grid(visible)
    own = SortedKeys.of(keys, keys.weight, BINS)
    texts = [Counter[int]() for _ in grid.number]
    rngs = map(np.random.default_rng, range(200))
    for pairs in attended_pairs(own, [keys.weight] * 200, grid, visible, 16, rngs):
        for place, used in enumerate(pairs.of_bin):
            texts[place].update(pairs.group[used].tolist())
    assert not pairs.of_cells
    queries = grid.queries
    for number, found in zip(grid.number.tolist(), texts, strict=True):
        inside = queries.position // SIZE == number
        possible = chances(keys, grid, number, visible, "context", 0.0)
        weight = {
            text: queries.weight[inside & (queries.text == text)].sum()
            for text in {int(keys.text[pair[0]]) for pair in possible}
        }
        few = visible.is_limited and len(weight) < TEXTS
        assert bool(found) == (not few)  # a window needs pairs of four texts
        for text, tokens in weight.items() if found else ():
            share = tokens / sum(weight.values())
            assert found[text] / sum(found.values()) == pytest.approx(share, abs=0.02)
