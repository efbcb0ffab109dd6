"""Scores that rank the keys of a text without a query. A large score keeps the key.

Arrays in, arrays out; numpy only. The scores of a key head come from fits to the queries of each of
its query heads (`query_fit`). docs/method.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from attention_plasticity.measure.later_queries import LaterQueries, TextRows
from attention_plasticity.measure.query_fit import (
    Complex,
    QueryFit,
    QueryGaussian,
    in_bands,
    turned,
)
from qk_dump.rotary import RotaryRecord, pair_dimensions
from qk_toolkit.arrays import Array

SCORES = (
    "key_norm",
    "q_filter",
    "gaussian",
    "expected_attention",
    "triattention",
    "bucket_gaussian",
    "exact_rotation",
)
"""The scores, in the order of tables."""

LOG_SCORES = ("gaussian", "expected_attention", "bucket_gaussian", "exact_rotation")
"""Scores that are logarithms of a weight, so that a weight times ‖v‖ has a meaning."""

_PARTS = 4  # of a bin; `exact_rotation` turns queries to the middle of each


@dataclass(frozen=True)
class KeyScores:
    """The scores of the keys of one text, for the query heads of `fits` together."""

    fits: Sequence[QueryFit]
    keys: TextRows
    later: LaterQueries
    scale: float  # factor of a logit on q·k
    record: RotaryRecord | None  # None: the layer has no rotary embedding
    bin_size: int

    def all(self) -> dict[str, Array]:
        """(n,) of every score.

        `key_norm` is the length of a key; a caller may change its sign. Keys that no query sees get
        −∞ in `bucket_gaussian` and `exact_rotation`.
        """
        K, weight = self.keys.vectors, self.keys.weight  # (n, d), (n,)
        after = [fit.after_rope for fit in self.fits]
        before = [fit.before_rope for fit in self.fits]
        averaged = _log_means(self._mean_turned(), before, self.scale)  # (heads, n)
        return {
            "key_norm": np.linalg.norm(K, axis=1),
            "q_filter": K @ np.mean([fit.direction for fit in self.fits], axis=0),
            "gaussian": _of_heads(_softmax(_log_means(K, after, self.scale), weight)),
            "expected_attention": _of_heads(_softmax(averaged, weight)),
            "triattention": self._triattention(),
            "bucket_gaussian": self._over_bins(exact=False),
            "exact_rotation": self._over_bins(exact=True),
        }

    def _mean_turned(self) -> Array:
        """(n, d) keys times the transposed mean of the rotations of all later queries."""
        K, record = self.keys.vectors, self.record
        if record is None:
            return K
        mean = mean_turn(np.array(record.frequencies), self.later.first, self.later.end)  # (m,)
        rotary = in_bands(K, record).rotary * mean.conj()  # (n, m)
        found = K.copy()
        first, second = pair_dimensions(record)
        found[:, first], found[:, second] = rotary.real, rotary.imag
        return found

    def _triattention(self) -> Array:
        """(n,) mean over heads of the standardised scores of TriAttention."""
        keys, record = self.keys, self.record
        K = in_bands(turned(keys.vectors, keys.position, record), record)
        frequencies = () if record is None else record.frequencies
        turn = np.exp(1j * np.outer(_distances(self.later), frequencies)).mean(axis=0)  # (m,)
        total = np.zeros(len(keys.position))
        for fit in self.fits:
            mean = in_bands(fit.before_rope.mean[None], record)
            score = (K.rotary.conj() @ (mean.rotary[0] * turn)).real + K.rest @ mean.rest[0]  # (n,)
            score += K.lengths @ (fit.band_lengths - mean.lengths[0])
            total += _standardised(score, keys.weight)
        return total / len(self.fits)

    def _over_bins(self, *, exact: bool) -> Array:
        """(n,) log of the attention from all later queries, by the Gaussian of every bin.

        If `exact`, by the Gaussian before RoPE, turned to the middle of each quarter of a bin.
        """
        keys, later = self.keys, self.later
        total = np.full((len(self.fits), len(keys.position)), -np.inf)
        for number, start, end in self._parts(_PARTS if exact else 1):
            seen = (keys.position < end) & (later.visible.end(keys.position) > start)  # (n,)
            rows = np.flatnonzero(seen)  # (r,)
            queries = later.number(keys.position[rows], start, end)  # (r,)
            if not queries.any():
                continue
            K, heads = keys.vectors[rows], [fit.of_bin(number) for fit in self.fits]  # (r, d)
            if exact:  # the key is turned back, so that the covariance need not turn
                K = turned(K, 0.5 * (start + end - 1), self.record)
                heads = [fit.before_rope for fit in self.fits]
            logs = _softmax(_log_means(K, heads, self.scale), keys.weight[rows])  # (heads, r)
            with np.errstate(divide="ignore"):
                logs += np.log(queries)
            total[:, rows] = np.logaddexp(total[:, rows], logs)
        return _of_heads(total)

    def _parts(self, parts: int) -> Iterator[tuple[int, int, int]]:
        """Bin, first position and end of every part of a bin that has later queries."""
        size, later = self.bin_size, self.later
        for number in range(later.first // size, -(-later.end // size)):
            edges = [number * size + size * part // parts for part in range(parts + 1)]
            for start, end in pairwise(edges):
                if max(start, later.first) < min(end, later.end):
                    yield number, max(start, later.first), min(end, later.end)


def _log_means(K: Array, heads: Sequence[QueryGaussian], scale: float) -> Array:
    """(heads, n) log of the mean of exp(s·qᵀk) over queries q of each Gaussian."""
    mean = np.stack([head.mean for head in heads], axis=1)  # (d, heads)
    result = scale * (K @ mean).T  # (heads, n)
    for row, head in zip(result, heads, strict=True):
        row += 0.5 * scale**2 * np.einsum("nd,nd->n", K @ head.covariance, K)
    return np.asarray(result)


def _softmax(logs: Array, weight: Array) -> Array:
    """Logarithms of a softmax of `logs` (heads, n) over keys with weights (n,)."""
    top = logs.max(axis=1, keepdims=True)  # (heads, 1)
    return np.asarray(logs - top - np.log(np.exp(logs - top) @ weight)[:, None])


def _of_heads(logs: Array) -> Array:
    """(n,) log of the mean over heads of exp(`logs`), which is (heads, n)."""
    return np.asarray(np.logaddexp.reduce(logs, axis=0) - math.log(len(logs)))


def mean_turn(frequencies: Array, first: int, end: int) -> Complex:
    """(m,) mean of exp(i·ω·p) over the positions p from `first` to `end − 1`."""
    step, n = np.expm1(1j * frequencies), end - first
    whole = np.abs(step) < 1e-12  # no rotation, or whole turns per token
    mean = np.where(whole, 1.0, np.expm1(1j * n * frequencies) / np.where(whole, 1.0, n * step))
    return np.asarray(mean * np.exp(1j * first * frequencies))


def _distances(later: LaterQueries) -> Array:
    """Powers of two from `near` to the length of the text, one at least."""
    first = max(0, math.ceil(math.log2(max(1, later.near))))
    last = max(first, math.floor(math.log2(later.end)))
    return np.ldexp(1.0, np.arange(first, last + 1))


def _standardised(score: Array, weight: Array) -> Array:
    """`score` (n,) minus its mean over keys, divided by its standard deviation."""
    centred = score - np.average(score, weights=weight)
    deviation = math.sqrt(np.average(centred**2, weights=weight))
    return np.asarray(centred / deviation if deviation > 0 else np.zeros_like(score))
