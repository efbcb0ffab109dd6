"""Plasticity by counting, from the Parquet files: no Gaussian, no rotation, no code of the package.

Twelve texts with one position in sixteen often have the same position in two texts. Two such
queries are a pair of questions at exactly one position. Plasticity is twice the chance that they
prefer different keys. Two queries of different texts anywhere in a bin give plasticity over a bin.
The drop from the first to the last fifth of the context and its parts are sums over the counts of
cells: at exactly one position and with keys of one bin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

BIN = 512  # tokens
KEY_PAIRS = 64  # of a bin of keys
QUERY_PAIRS = 512  # of a bin of queries, at any two positions


@dataclass(frozen=True)
class Rows:
    """Queries or keys of a head."""

    vectors: Floats  # (n, d)
    position: Ints  # (n,)
    text: Ints  # (n,)

    @classmethod
    def read(cls, folder: Path) -> Rows:
        """The rows of a head folder of a dump."""
        table = pq.read_table(folder / "data.parquet", columns=["vector", "position", "example_id"])
        flat = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        columns = (table[name].to_numpy().astype(np.int64) for name in ("position", "example_id"))
        return cls(flat.reshape(len(table), -1).astype(np.float64), *columns)

    def part(self, index: Any) -> Rows:
        """Some of the rows."""
        return Rows(self.vectors[index], self.position[index], self.text[index])


@dataclass(frozen=True)
class Count:
    """A counted value and its standard error over texts."""

    value: float
    error: float


def counted_heads(dump: Path) -> pd.DataFrame:
    """One row per query head: counts at one position and over a bin, the drop and its parts."""
    rows = []
    for layer, head, queries, keys in _heads(dump):
        counts = count_head(queries, keys, np.random.default_rng([layer, head]))
        numbers = [number for count in counts for number in (count.value, count.error)]
        rows.append((layer, head, *numbers))
    names = ("one_position", "over_bin", "drop", "drop_position", "drop_distance")
    columns = [column for name in names for column in (name, f"{name}_se")]
    return pd.DataFrame(rows, columns=["layer", "q_head", *columns])


def counted_bins(dump: Path, size: int) -> pd.DataFrame:
    """One row per bin of `size` tokens: the mean over heads of the count at one position."""
    found = []
    for layer, head, queries, keys in _heads(dump):
        exact, _ = _count_cells(queries, keys, np.random.default_rng([layer, head]), size)
        found.append([own[0].mean() for own in exact])
    starts = size * np.arange(1, 1 + len(found[0]))
    return pd.DataFrame({"start": starts, "one_position": np.mean(found, axis=0)})


def _heads(dump: Path) -> Iterator[tuple[int, int, Rows, Rows]]:
    """Layer, query head, its queries and its keys."""
    names = sorted(folder.name for folder in dump.glob("l*q"))
    group = len(names) // len(list(dump.glob("l*k")))  # query heads of one key head
    for name in names:
        layer, head = int(name[1:3]), int(name[4:6])
        keys = dump / f"l{layer:02}h{head // group:02}k"
        yield layer, head, Rows.read(dump / name), Rows.read(keys)


@dataclass(frozen=True)
class KeyPairs:
    """Pairs of keys of one text, both in the same bin."""

    differences: Floats  # (pairs, d) first key minus second key
    text: Ints  # (pairs,)


def count_head(
    queries: Rows, keys: Rows, generator: np.random.Generator, size: int = BIN
) -> tuple[Count, ...]:
    """The counts of a head at one position and over a bin of `size` tokens, and the drop at one
    position with its parts from position and from distance.

    A mean over bins of queries, of the mean over earlier bins of keys, of the mean over pairs.
    """
    exact, over = _count_cells(queries, keys, generator, size)
    means = [np.mean([own.mean(axis=1) for own in cells], axis=0) for cells in (exact, over)]
    return *map(_count, means), *map(_count, split_drop(exact))


def split_drop(cells: Sequence[Floats]) -> Floats:
    """(3, 1 + texts) drop from the first to the last fifth, its parts from position and distance.

    `cells` has an array (1 + texts, earlier bins) for every bin of queries after the first. A bin
    in two fifths belongs to each with the share of its tokens.
    """
    bins = 1 + len(cells)
    shares, values = np.zeros((2, bins)), np.zeros((2, bins, len(cells[0])))
    for fifth, begin in enumerate((0.0, 0.8 * bins)):
        tokens = [max(0.0, min(q + 1, begin + 0.2 * bins) - max(q, begin)) for q in range(1, bins)]
        if not any(tokens):  # the first bin has no count
            return np.full((3, len(cells[0])), np.nan)
        for query, (weight, own) in enumerate(zip(tokens, cells, strict=True), start=1):
            for key in range(query):
                share = weight / sum(tokens) / query
                shares[fifth, query - key] += share
                values[fifth, query - key] += share * own[:, key]
    common = shares.min(axis=0) > 0  # (bins,)
    means = values[:, common] / shares[:, common, None]
    drop = (values[0] - values[1]).sum(axis=0)
    position = (shares[0, common, None] * (means[0] - means[1])).sum(axis=0)
    return np.array([drop, position, drop - position])


def _count_cells(
    queries: Rows, keys: Rows, generator: np.random.Generator, size: int
) -> tuple[list[Floats], list[Floats]]:
    """An array (1 + texts, earlier bins of keys) for every bin of queries after the first, twice:
    at one position, and over the bin.

    The first row has all texts, each of the others lacks one text.
    """
    texts = np.unique(queries.text)
    last = int(queries.position.max()) // size
    pairs = [_key_pairs(keys.part(keys.position // size == at), generator) for at in range(last)]
    exact: list[Floats] = []
    over: list[Floats] = []
    for at in range(1, last + 1):
        here = queries.part(queries.position // size == at)
        prefers = [here.vectors @ cell.differences.T > 0 for cell in pairs[:at]]  # (rows, pairs)
        for found, chosen in (
            (exact, same_position(here)),
            (over, _any_position(here, generator)),
        ):
            cells = [
                _without_each(here.text[chosen], cell.text, signs[chosen], texts)
                for cell, signs in zip(pairs[:at], prefers, strict=True)
            ]
            found.append(np.stack(cells, axis=1))
    return exact, over


def same_position(rows: Rows) -> Ints:
    """(2, n) all pairs of rows of different texts at the same position."""
    equal = rows.position[:, None] == rows.position[None, :]  # (rows, rows)
    return np.argwhere(np.triu(equal, 1)).T  # a text has a position once


def _any_position(rows: Rows, generator: np.random.Generator) -> Ints:
    """(2, n) random pairs of rows of different texts."""
    drawn = generator.integers(len(rows.position), size=(2, 2 * QUERY_PAIRS))
    return drawn[:, rows.text[drawn[0]] != rows.text[drawn[1]]][:, :QUERY_PAIRS]


def _key_pairs(keys: Rows, generator: np.random.Generator) -> KeyPairs:
    """Some of all pairs of keys of one text."""
    same_text = keys.text[:, None] == keys.text[None, :]  # (keys, keys)
    possible = np.argwhere(np.triu(same_text, 1))  # (pairs, 2)
    chosen = generator.permutation(len(possible))[:KEY_PAIRS]
    first, second = possible[chosen].T
    return KeyPairs(keys.vectors[first] - keys.vectors[second], keys.text[first])


def _without_each(
    query_texts: Ints, key_texts: Ints, prefers: npt.NDArray[np.bool_], texts: Ints
) -> Floats:
    """(1 + texts,) twice the share of disagreements, with all texts and without each text.

    `query_texts` is (2, n), `key_texts` (pairs,), and `prefers` (2, n, pairs): whether each of two
    queries prefers the first key.
    """
    differ = (prefers[0] != prefers[1]).astype(np.float64)  # (n, pairs)
    with_all = np.full(1, -1)  # no text has this number
    left_out = np.concatenate([with_all, texts])[:, None]  # (1 + texts, 1)
    queries = (query_texts[0] != left_out) & (query_texts[1] != left_out)  # (1 + texts, n)
    keys = key_texts != left_out  # (1 + texts, pairs)
    sums = ((queries.astype(np.float64) @ differ) * keys).sum(axis=1)  # (1 + texts,)
    pairs = queries.sum(axis=1) * keys.sum(axis=1)  # (1 + texts,)
    return np.asarray(2.0 * sums / np.where(pairs > 0, pairs, np.nan), np.float64)


def _count(values: Floats) -> Count:
    """The value with all texts, and the jackknife error from the values without each text."""
    without = values[1:]
    texts = len(without)
    squares = float(((without - without.mean()) ** 2).sum())
    return Count(float(values[0]), float(np.sqrt((texts - 1) / texts * squares)))
