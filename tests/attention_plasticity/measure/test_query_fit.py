"""Fits to queries against numpy's own covariance and SVD, and explicit rotation matrices."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.measure.later_queries import TextRows
from attention_plasticity.measure.query_fit import QueryFit, query_sums
from attention_plasticity.read.bins import Bins
from qk_dump.rotary import RotaryRecord
from rotated_queries import HALVES, RECORDS, rotation, sample

BINS = Bins(32, 128)


def fitted(
    Q: np.ndarray, position: np.ndarray, weight: np.ndarray, record: RotaryRecord | None = None
) -> QueryFit:
    """The fit to queries."""
    return query_sums(TextRows(Q, position, weight), BINS, record).fit()


@RECORDS
def test_moments_agree_with_numpy(record: RotaryRecord | None) -> None:
    Q, position, weight = sample(record=record)
    found = fitted(Q, position, weight, record)
    kept = position >= 4
    before = np.stack([rotation(-p, record, 5) @ q for p, q in zip(position, Q, strict=True)])
    for vectors, gaussian in ((Q, found.after_rope), (before, found.before_rope)):
        mean = np.average(vectors[kept], axis=0, weights=weight[kept])
        assert gaussian.mean == pytest.approx(mean, rel=1e-9)
        covariance = np.cov(vectors[kept].T, aweights=weight[kept])
        assert gaussian.covariance == pytest.approx(covariance, rel=1e-9, abs=1e-12)
    top = np.linalg.svd(Q[kept] * np.sqrt(weight[kept])[:, None])[2][0]
    top *= np.sign(top @ found.after_rope.mean)
    assert found.direction == pytest.approx(top, rel=1e-8, abs=1e-10)


def test_bins_have_their_own_gaussians_if_they_hold_32_queries() -> None:
    Q, position, weight = sample()
    kept = (position >= 4) & ((position < 32) | (position >= 64))
    Q, position, weight = Q[kept], position[kept], weight[kept]
    found = fitted(Q, position, weight)
    assert list(found.of_bins) == [0, 2, 3]
    for number, source in ((0, 0), (1, 0), (2, 2), (3, 3), (7, 3)):
        own = position // 32 == source
        mean = np.average(Q[own], axis=0, weights=weight[own])
        assert found.of_bin(number).mean == pytest.approx(mean, rel=1e-9)
        covariance = np.cov(Q[own].T, aweights=weight[own])
        assert found.of_bin(number).covariance == pytest.approx(covariance, rel=1e-9, abs=1e-12)


def test_lengths_of_bands() -> None:
    Q, position, weight = sample(record=HALVES)
    found = fitted(Q, position, weight, HALVES)
    expected = np.zeros(3)
    kept = np.flatnonzero(position >= 4)
    for row in kept:
        for band, dimensions in enumerate(([0, 2], [1, 3], [4])):
            expected[band] += weight[row] * np.linalg.norm(Q[row, dimensions])
    assert found.band_lengths == pytest.approx(expected / weight[kept].sum(), rel=1e-9)


@RECORDS
def test_subtracted_sums_are_those_of_the_other_texts(record: RotaryRecord | None) -> None:
    """All queries of the last bin are of the texts that are left out."""
    rows = TextRows(*sample(n=400, record=record))
    own = np.random.default_rng(1).integers(0, 4, 400) == 2
    own |= rows.position >= 96
    less, left = (TextRows(*(column[kept] for column in rows)) for kept in (own, ~own))
    sums = query_sums(rows, BINS, record).without(query_sums(less, BINS, record))
    assert sums.rows[3] == 0
    found, expected = sums.fit(), query_sums(left, BINS, record).fit()
    assert list(found.of_bins) == list(expected.of_bins) == [0, 1, 2]
    assert found.direction == pytest.approx(expected.direction, rel=1e-8, abs=1e-10)
    assert found.band_lengths == pytest.approx(expected.band_lengths, rel=1e-9)
    pairs = [
        (found.after_rope, expected.after_rope),
        (found.before_rope, expected.before_rope),
        *((found.of_bin(number), expected.of_bin(number)) for number in range(4)),
    ]
    for one, other in pairs:
        assert one.mean == pytest.approx(other.mean, rel=1e-8, abs=1e-10)
        assert one.covariance == pytest.approx(other.covariance, rel=1e-8, abs=1e-10)
