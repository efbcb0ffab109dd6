"""Simulated heads with RoPE whose plasticity at one position is known, for tests of intervals.

Before RoPE, a query has a mean that drifts with position, an effect of its text and noise; a key
has a mean, noise and a direction of its text. Both are then turned to their positions. Texts are
simulated as a whole, so that every key has its attention, and a sampler keeps some tokens.

The true values are counted: many queries of different texts at the same position, many pairs of
keys. Nothing of the package is used for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import ndtr

from attention_plasticity.read.bins import Bins
from attention_plasticity.read.layer import Layer, LayerRotation
from attention_plasticity.read.pool import KeyPool
from attention_plasticity.read.rows import Keys
from helpers.simulated_heads import analyse, keys_of
from qk_dump.layers import RotaryRecord
from qk_dump.reader import HeadRows

Cells = dict[tuple[int, int], tuple[float, float]]
"""Weight in its bin of queries, and plasticity, of cells by bin of queries and bin of keys."""
FIRST_KEY = 4  # the first four tokens are left out of attended pairs


@dataclass(frozen=True)
class RopePopulation:
    """The distribution from which the texts of one head are drawn."""

    width: int = 16
    length: int = 256
    bin_size: int = 32
    texts: int = 12
    rate: float = 0.25  # expected share of the tokens that are kept
    sampler: Literal["uniform", "log_uniform"] = "uniform"
    similarity: float = 0.3  # share of the variance of queries that a text has in common
    key_direction: float = 1.0  # strength of the direction of a text in its keys
    reach_end: float = 1.0  # probability of a text of full length; others have half of it
    drift: float = 1.0  # of the mean query; 0: it is the same at all positions
    fastest: float = 1.0  # radians per token; 0: no rotation
    range_of_frequencies: float = 100.0
    sizes: tuple[float, float, float] = (0.4, 0.9, 0.5)
    """Of the entries of the mean query at the first and last position, and of the mean key."""
    common: float = 0.0  # mean key: this many times the mean query at the first position
    pairs: Literal["bucket", "context"] = "bucket"
    seed: int = 0  # of means and drift

    @cached_property
    def frequencies(self):
        """(d/2,) radians per token."""
        half = self.width // 2
        return self.fastest * self.range_of_frequencies ** (-np.arange(half) / half)

    @property
    def bins(self):
        return self.length // self.bin_size

    @cached_property
    def keep(self):
        """(length,) probability that a token is kept."""
        shape = np.ones(self.length)
        if self.sampler == "log_uniform":
            shape = 1.0 / (np.arange(self.length) + 32.0)
        return np.minimum(1.0, shape * self.rate / shape.mean())

    def turned(self, vectors, position):
        """Vectors (…, d) with RoPE at positions (…); halves form pairs."""
        half = self.width // 2
        pairs = vectors[..., :half] + 1j * vectors[..., half:]
        pairs = pairs * np.exp(1j * np.asarray(position)[..., None] * self.frequencies)
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    def queries(self, position, effect, rng):
        """Queries (…, d) at positions (…), of texts with effects (…, d)."""
        start, end, _ = self._means
        share = self.drift * np.asarray(position)[..., None] / self.length
        noise = rng.standard_normal((*np.shape(position), self.width))
        content = np.sqrt(self.similarity) * effect + np.sqrt(1 - self.similarity) * noise
        return self.turned(start + share * (end - start) + content, position)

    def keys(self, position, direction, rng):
        """Keys (…, d) at positions (…), of texts with directions (…, d)."""
        along = self.key_direction * rng.standard_normal((*np.shape(position), 1))
        noise = rng.standard_normal((*np.shape(position), self.width))
        return self.turned(self._means[2] + noise + along * direction, position)

    @cached_property
    def _means(self):
        """(3, d) mean query at the first and last position, mean key; all before RoPE."""
        rng = np.random.default_rng([self.seed, 1])
        means = np.array(self.sizes)[:, None] * rng.standard_normal((3, self.width))
        means[2] += self.common * means[0]
        return means


@dataclass(frozen=True)
class RopeTruth:
    """True values of a population, by the column that estimates them."""

    values: dict[str, float]
    pooled_counted: float  # two queries anywhere in a bin; `ap_pooled` has a Gaussian


def attention(population, queries, keys):
    """(n,) mean weight that each key of a text receives from all queries of the text."""
    n = len(keys)
    logits = (queries @ keys.T / np.sqrt(population.width)).astype(np.float32)
    logits[np.triu_indices(n, 1)] = -np.inf
    logits -= logits.max(axis=1, keepdims=True)
    weights = np.exp(logits, out=logits)
    return np.asarray((1.0 / weights.sum(axis=1)) @ weights / n, np.float64)


def true_values(population, each=256, texts=400, attended_pairs=100):
    """Count at every position: `each` queries of different texts, `each` pairs of other texts.

    Attended pairs come from `texts` whole texts, with `attended_pairs` pairs for each bin of
    queries and each of them.
    """
    rng = np.random.default_rng([population.seed, 2])
    size, length = population.bin_size, population.length
    aligned, attended = np.full(length, np.nan), np.full(length, np.nan)
    pooled, counted = np.full(population.bins, np.nan), np.full(population.bins, np.nan)
    whole = [_attended_text(population, rng) for _ in range(texts)]
    for query_bin in range(1, population.bins):
        at = np.arange(query_bin * size, (query_bin + 1) * size)
        shape = (size, each)
        position = np.broadcast_to(at[:, None], shape)
        effects = rng.standard_normal((*shape, population.width))
        Q = population.queries(position, effects, rng)  # (size, each, d)
        W = _pairs(population, query_bin, shape, rng)  # (size, each, d)
        aligned[at] = _counted(Q, W)
        anywhere = rng.permuted(np.arange(size * each)).reshape(shape)
        mixed = Q.reshape(-1, population.width)[anywhere]
        counted[query_bin] = _counted(mixed, W).mean()
        pooled[query_bin] = _of_gaussian(Q.reshape(-1, population.width), W)
        if whole:
            drawn = _attended_pairs(whole, query_bin * size, attended_pairs * texts, rng)
            drawn = drawn[: len(drawn) // size * size].reshape(size, -1, population.width)
            attended[at] = _counted(Q, drawn)
    return _means(population, aligned, attended, pooled, counted)


def true_parts(population, each=128):
    """The drop and its parts, counted at every position for every bin of keys.

    For texts of full length, pairs within a bin, and fifths of whole bins.
    """
    rng = np.random.default_rng([population.seed, 3])
    size, bins = population.bin_size, population.bins
    assert population.pairs == "bucket"
    assert population.reach_end == 1.0
    assert bins % 5 == 0
    cells = np.full((bins, bins), np.nan)  # query bin, key bin
    for query_bin in (*range(1, bins // 5), *range(4 * bins // 5, bins)):
        at = np.arange(query_bin * size, (query_bin + 1) * size)
        position = np.broadcast_to(at[:, None], (size, each))
        effects = rng.standard_normal((size, each, population.width))
        Q = population.queries(position, effects, rng)  # (size, each, d)
        for key_bin in range(query_bin):
            start = np.full((size, each), key_bin * size)
            cells[query_bin, key_bin] = _counted(
                Q, _pairs_within(population, start, size, rng)
            ).mean()
    return split(equal_cells(cells), range(1, bins // 5), range(4 * bins // 5, bins))


def equal_cells(cells):
    """`cells` (query bin, key bin) of earlier bins of keys; all cells of a bin weigh the same."""
    size = len(cells)
    return {(q, k): (1 / q, float(cells[q, k])) for q in range(1, size) for k in range(q)}


def split(cells, first, last):
    """The drop between two ranges of query bins, and its parts. All bins weigh the same."""
    found = []
    for bins in (first, last):
        at = {}
        for (query_bin, key_bin), (share, value) in cells.items():
            if query_bin in bins:
                at.setdefault(query_bin - key_bin, []).append((share / len(bins), value))
        found.append(at)
    position = distance = 0.0
    for number in {*found[0], *found[1]}:
        (w1, sum1), (w5, sum5) = (
            (sum(w for w, _ in at.get(number, [])), sum(w * v for w, v in at.get(number, [])))
            for at in found
        )
        if w1 and w5:
            position += w1 * (sum1 / w1 - sum5 / w5)
            distance += (w1 - w5) * sum5 / w5
        else:
            distance += sum1 - sum5
    names = ("ap_aligned_drop_position", "ap_aligned_drop_distance", "ap_aligned_drop")
    return dict(zip(names, (position, distance, position + distance), strict=True))


def _counted(Q, W):
    """(n,) twice the chance that two of the queries (n, E, d) prefer different keys of a pair.

    `W` (n, P, d) are the differences of the keys.
    """
    prefer = np.count_nonzero(np.matmul(Q, W.transpose(0, 2, 1)) > 0, axis=1)  # (n, P)
    each = Q.shape[1]
    return np.asarray((4.0 * prefer * (each - prefer) / (each * (each - 1))).mean(axis=1))


def _of_gaussian(Q, W):
    """Mean of 4p(1 − p) under one Gaussian of the queries (n, d): what `ap_pooled` estimates."""
    flat = W.reshape(-1, W.shape[-1])
    deviation = np.sqrt(np.einsum("pd,de,pe->p", flat, np.cov(Q.T), flat))
    p = ndtr(flat @ Q.mean(axis=0) / deviation)
    return float((4 * p * (1 - p)).mean())


def _pairs(population, query_bin, shape, rng):
    """(*shape, d) differences of two earlier keys, each pair of another text."""
    size = population.bin_size
    span, start = query_bin * size, np.zeros(shape, np.int64)
    if population.pairs == "bucket":
        span, start = size, size * rng.integers(0, query_bin, shape)
    return _pairs_within(population, start, span, rng)


def _pairs_within(population, start, span, rng):
    """(*shape, d) differences of two of `span` keys from `start` (*shape) on."""
    shape = start.shape
    first = rng.integers(0, span, shape)
    second = (first + rng.integers(1, span, shape)) % span
    direction = rng.standard_normal((*shape, population.width))
    one, other = (population.keys(start + p, direction, rng) for p in (first, second))
    return np.asarray(one - other)


def _attended_text(population, rng):
    """The keys of a whole text, and the attention that they receive."""
    effects = rng.standard_normal((2, 1, population.width))
    position = np.arange(population.length)
    queries = population.queries(position, effects[0], rng)
    keys = population.keys(position, effects[1], rng)
    return keys, attention(population, queries, keys)


def _attended_pairs(texts, end, number, rng):
    """(≤ number, d) differences of keys before `end`, in proportion to the attention of both."""
    found = []
    for keys, received in texts:
        weight = np.where(np.arange(end) >= FIRST_KEY, received[:end], 0.0)
        chosen = rng.choice(end, (2, number // len(texts)), p=weight / weight.sum())
        chosen = chosen[:, chosen[0] != chosen[1]]
        found.append(keys[chosen[0]] - keys[chosen[1]])
    return rng.permuted(np.concatenate(found), axis=0)


def _means(population, aligned, attended, pooled, counted):
    """Means over the tokens after the first bin; some texts have half of the length."""
    position = np.arange(population.length)
    tokens = np.where(position < population.length // 2, 1.0, population.reach_end)
    tokens[: population.bin_size] = 0.0
    fifth = 5 * position // population.length

    def mean(values, weight):
        used = weight > 0
        return float(values[used] @ weight[used] / weight.sum())

    fifths = [mean(aligned, tokens * (fifth == part)) for part in range(5)]
    overall = mean(aligned, tokens)
    spread = [np.repeat(values, population.bin_size) for values in (pooled, counted)]
    over_bins, over_bins_counted = (mean(values, tokens) for values in spread)
    values = {
        "ap_aligned": overall,
        "ap_aligned_first20": fifths[0],
        "ap_aligned_last20": fifths[-1],
        "ap_aligned_drop": fifths[0] - fifths[-1],
        "ap_phase": over_bins - overall,
        "ap_attended": mean(attended, tokens),
    }
    return RopeTruth(values, over_bins_counted)


@dataclass(frozen=True)
class RopeHead:
    """What was kept of a head: queries, keys, and keys with those drawn by their attention."""

    queries: HeadRows
    weight: np.ndarray  # (n,) tokens that the queries stand for
    keys: Keys
    pool: KeyPool | None  # None: attention is not simulated

    def analyse(self, q_head=0, **settings):
        """The result of the head."""
        return analyse(self.queries, self.keys, q_head, self.weight, self.pool, **settings)


def draw_rope_head(population, rng, effects, *, attended=True):
    """A sample of the head. `effects` (2, texts, d) are those on queries and directions of keys.

    A key is in the pool if the sampler keeps it, or independently in proportion to its attention.
    Without `attended`, there is no pool.
    """
    queries = []
    keys = []
    for text in range(population.texts):
        long = rng.random() < population.reach_end
        at = np.arange(population.length if long else population.length // 2)
        Q = population.queries(at, effects[0, text], rng)
        K = population.keys(at, effects[1, text], rng)
        keep, received = population.keep[at], np.zeros(len(at))
        if attended:
            received = attention(population, Q, K)
        kept, base = rng.random((2, len(at))) < keep
        by_attention = np.minimum(1.0, population.rate * len(at) * received)
        pool = base | (rng.random(len(at)) < by_attention)
        inclusion = 1.0 - (1.0 - keep) * (1.0 - by_attention)
        number = np.full(len(at), text)
        queries.append((at[kept], number[kept], Q[kept]))
        keys.append(tuple(x[pool] for x in (at, number, K, base, received, inclusion)))
    rows = _rows(population, queries)
    *parts, base, received, inclusion = (np.concatenate(part) for part in zip(*keys, strict=True))
    of_pool = _rows(population, [tuple(parts)])
    of_base = of_pool[base]
    layer = Layer(rotation=LayerRotation(RotaryRecord(tuple(population.frequencies.tolist()))))
    how = (layer, Bins(population.bin_size, population.length))
    pool = None
    if attended:
        of_attention = received[:, None].astype(np.float32)
        pool = KeyPool(keys_of(of_pool, 1.0 / inclusion, *how), of_attention)
    base_keys = keys_of(of_base, _weight(population, of_base), *how)
    return RopeHead(rows, _weight(population, rows), base_keys, pool)


def _rows(population, parts):
    position, text, vectors = (np.concatenate(part) for part in zip(*parts, strict=True))
    last = float(population.length - 1)
    bucket, vectors = position // population.bin_size, vectors.astype(np.float32)
    columns = {"bucket": bucket, "position": position.astype(float)}
    return HeadRows({**columns, "vector": vectors, "example_id": text}, last)


def _weight(population, rows):
    return np.asarray(1.0 / population.keep[rows.position.astype(int)])
