"""Scores that rank the keys of a text without a query. A large score keeps the key.

Arrays in, arrays out; numpy only. The scores of a key head come from fits to the queries of each of
its query heads (`query_fit`). docs/method.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.fidelity.query_fit import Gaussian, QueryFit, band_values
from qk_dump.rotary import RotaryRecord, pair_dimensions, rotate
from qk_toolkit.arrays import Array, Vectors

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
class KeysOfText:
    """Keys of one text; a weighted sample of its tokens, or all of them."""

    vectors: Vectors  # (n, d) after RoPE
    position: Array  # (n,)
    weight: Array  # (n,) tokens that each key stands for


@dataclass(frozen=True)
class ScoredQueries:
    """The queries of a text for which keys are kept: positions `first` to `length − 1`."""

    length: int  # tokens of the text
    first: int  # position
    near: int = 128  # keys at smaller distances are kept anyway
    visible: Visible = field(default_factory=Visible)

    def number(self, position: Array, start: int, end: int) -> Array:
        """(n,) queries at `start` to `end − 1` that see keys at `position`, not near."""
        low = np.maximum(position + self.near, max(start, self.first))  # (n,)
        high = np.minimum(self.visible.end(position), min(end, self.length))
        return np.asarray(np.maximum(high - low, 0.0))


def score_keys(
    fits: Sequence[QueryFit],
    keys: KeysOfText,
    queries: ScoredQueries,
    *,
    scale: float,
    key_sign: float = -1.0,
) -> dict[str, Array]:
    """All scores (n,) of the keys of one text, for the query heads of `fits` together.

    `scale` is the factor of a logit on q·k. `key_sign` says whether long keys (1) or short keys
    (−1) have a high `key_norm`. Keys that no query sees get −∞ in `bucket_gaussian` and
    `exact_rotation`.
    """
    K = keys.vectors.astype(np.float64)  # (n, d)
    heads = [fit.after_rope for fit in fits]
    before = [fit.before_rope for fit in fits]
    averaged = _mean_turned(K, queries, fits[0].record)  # (n, d)
    return {
        "key_norm": key_sign * np.linalg.norm(K, axis=1),
        "q_filter": K @ np.mean([fit.direction for fit in fits], axis=0),
        "gaussian": _of_heads(_softmax(_log_means(K, heads, scale), keys.weight)),
        "expected_attention": _of_heads(_softmax(_log_means(averaged, before, scale), keys.weight)),
        "triattention": _triattention(fits, K, keys, queries),
        "bucket_gaussian": _bucket_gaussian(fits, K, keys, queries, scale),
        "exact_rotation": _exact_rotation(fits, K, keys, queries, scale),
    }


def times_value(score: Array, value_norm: Array) -> Array:
    """A score of `LOG_SCORES` (n,) of the weight times the length of the value (n,)."""
    with np.errstate(divide="ignore"):
        return np.asarray(score + np.log(value_norm))


def _log_means(K: Array, heads: Sequence[Gaussian], scale: float) -> Array:
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


def _mean_turned(K: Array, queries: ScoredQueries, record: RotaryRecord | None) -> Array:
    """(n, d) keys times the transposed mean of the rotations of all scored positions."""
    if record is None:
        return K
    cos, sin = mean_rotation(np.array(record.frequencies), queries.first, queries.length)
    first, second = pair_dimensions(record)
    turned = K.copy()
    turned[:, first] = cos * K[:, first] + sin * K[:, second]
    turned[:, second] = cos * K[:, second] - sin * K[:, first]
    return turned


def mean_rotation(frequencies: Array, first: int, end: int) -> tuple[Array, Array]:
    """(m,) means of cos(ω·p) and of sin(ω·p) over the positions p from `first` to `end − 1`."""
    n = end - first
    half = frequencies / 2.0
    sine = np.sin(half)  # (m,)
    whole = np.abs(sine) < 1e-12  # no rotation, or whole turns per token
    share = np.where(whole, 1.0, np.sin(n * half) / np.where(whole, 1.0, n * sine))  # (m,)
    angle = frequencies * (first + (n - 1) / 2.0)  # (m,) of the middle position
    return share * np.cos(angle), share * np.sin(angle)


def _triattention(
    fits: Sequence[QueryFit], K: Array, keys: KeysOfText, queries: ScoredQueries
) -> Array:
    """(n,) mean over heads of the standardised scores of TriAttention."""
    record = fits[0].record
    m = 0 if record is None else len(record.frequencies)
    if record is not None:
        K = np.asarray(rotate(K, keys.position, 0.0, record), np.float64)  # before RoPE
    values, lengths = band_values(K, record)  # (n, d), (n, bands)
    turn = np.zeros(0, np.complex128)  # (m,) mean over distances Δ of exp(i·ω·Δ)
    if record is not None:
        turn = np.exp(1j * np.outer(_distances(queries), record.frequencies)).mean(axis=0)
    total = np.zeros(len(K))
    for fit in fits:
        mean, mean_lengths = band_values(fit.before_rope.mean[None], record)  # (1, d), (1, bands)
        turned = (mean[0, :m] + 1j * mean[0, m : 2 * m]) * turn  # (m,)
        score = values[:, :m] @ turned.real + values[:, m : 2 * m] @ turned.imag  # (n,)
        score += values[:, 2 * m :] @ mean[0, 2 * m :]
        score += lengths @ (fit.band_lengths - mean_lengths[0])
        total += _standardised(score, keys.weight)
    return total / len(fits)


def _distances(queries: ScoredQueries) -> Array:
    """Powers of two from `near` to the length of the text, one at least."""
    first = max(0, math.ceil(math.log2(max(1, queries.near))))
    last = max(first, math.floor(math.log2(queries.length)))
    return np.ldexp(1.0, np.arange(first, last + 1))


def _standardised(score: Array, weight: Array) -> Array:
    """`score` (n,) minus its mean over keys, divided by its standard deviation."""
    centred = score - np.average(score, weights=weight)
    deviation = math.sqrt(np.average(centred**2, weights=weight))
    return np.asarray(centred / deviation if deviation > 0 else np.zeros_like(score))


def _bucket_gaussian(
    fits: Sequence[QueryFit], K: Array, keys: KeysOfText, queries: ScoredQueries, scale: float
) -> Array:
    """(n,) log of the attention from all scored queries, by the Gaussian of every bin."""
    total = np.full((len(fits), len(K)), -np.inf)
    for number, start, end in _parts(fits[0].bins.size, queries, 1):
        heads = [fit.of_bin(number) for fit in fits]
        _add(total, K, heads, keys, queries, (start, end), scale)
    return _of_heads(total)


def _exact_rotation(
    fits: Sequence[QueryFit], K: Array, keys: KeysOfText, queries: ScoredQueries, scale: float
) -> Array:
    """(n,) the same by the Gaussian before RoPE, turned to the middle of each quarter of a bin."""
    record, heads = fits[0].record, [fit.before_rope for fit in fits]
    total = np.full((len(fits), len(K)), -np.inf)
    for _, start, end in _parts(fits[0].bins.size, queries, _PARTS):
        turned = K
        if record is not None:  # the key is turned back, so that the covariance need not turn
            turned = np.asarray(rotate(K, 0.5 * (start + end - 1), 0.0, record), np.float64)
        _add(total, turned, heads, keys, queries, (start, end), scale)
    return _of_heads(total)


def _parts(size: int, queries: ScoredQueries, parts: int) -> Iterator[tuple[int, int, int]]:
    """Bin, first position and end of every part of a bin that has scored queries."""
    for number in range(queries.first // size, -(-queries.length // size)):
        edges = [number * size + size * part // parts for part in range(parts + 1)]
        for start, end in pairwise(edges):
            if max(start, queries.first) < min(end, queries.length):
                yield number, max(start, queries.first), min(end, queries.length)


def _add(
    total: Array,
    K: Array,
    heads: Sequence[Gaussian],
    keys: KeysOfText,
    queries: ScoredQueries,
    part: tuple[int, int],
    scale: float,
) -> None:
    """Add the queries of a part: their number times a softmax over the keys that they see."""
    start, end = part
    seen = (keys.position < end) & (queries.visible.end(keys.position) > start)  # (n,)
    rows = np.flatnonzero(seen)
    number = queries.number(keys.position[rows], start, end)  # (r,)
    if not number.any():
        return
    logs = _softmax(_log_means(K[rows], heads, scale), keys.weight[rows])  # (heads, r)
    with np.errstate(divide="ignore"):
        logs += np.log(number)
    total[:, rows] = np.logaddexp(total[:, rows], logs)
