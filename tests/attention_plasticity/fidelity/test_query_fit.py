"""Fits to queries against numpy's own covariance and SVD, and explicit rotation matrices."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.fidelity.query_fit import fit_queries, query_sums
from attention_plasticity.read.bins import Bins
from qk_dump.rotary import RotaryRecord
from rotated_queries import HALVES, RECORDS, rotation, sample


@RECORDS
def test_moments_agree_with_numpy(record: RotaryRecord | None) -> None:
    Q, position, weight = sample(record=record)
    found = fit_queries(Q, position, weight, Bins(32, 128), record)
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
    found = fit_queries(Q, position, weight, Bins(32, 128), None)
    assert found.known_bins.tolist() == [0, 2, 3]
    for number, source in ((0, 0), (1, 0), (2, 2), (3, 3), (7, 3)):
        own = position // 32 == source
        mean = np.average(Q[own], axis=0, weights=weight[own])
        assert found.of_bin(number).mean == pytest.approx(mean, rel=1e-9)
        covariance = np.cov(Q[own].T, aweights=weight[own])
        assert found.of_bin(number).covariance == pytest.approx(covariance, rel=1e-9, abs=1e-12)


def test_bins_with_few_queries_use_all_queries() -> None:
    Q, position, weight = sample(n=60)
    found = fit_queries(Q, position, weight, Bins(32, 128), None)
    assert not len(found.known_bins)
    assert found.of_bin(1) is found.after_rope


def test_lengths_of_bands() -> None:
    Q, position, weight = sample(record=HALVES)
    found = fit_queries(Q, position, weight, Bins(32, 128), HALVES)
    expected = np.zeros(3)
    kept = np.flatnonzero(position >= 4)
    for row in kept:
        for band, dimensions in enumerate(([0, 2], [1, 3], [4])):
            expected[band] += weight[row] * np.linalg.norm(Q[row, dimensions])
    assert found.band_lengths == pytest.approx(expected / weight[kept].sum(), rel=1e-9)


@RECORDS
def test_subtracted_sums_are_those_of_the_other_texts(record: RotaryRecord | None) -> None:
    Q, position, weight = sample(n=400, record=record)
    own = np.random.default_rng(1).integers(0, 4, len(Q)) == 2
    bins = Bins(32, 128)
    left = query_sums(Q, position, weight, bins, record) - query_sums(
        Q[own], position[own], weight[own], bins, record
    )
    found, expected = left.fit(), fit_queries(Q[~own], position[~own], weight[~own], bins, record)
    assert found.known_bins.tolist() == expected.known_bins.tolist()
    assert found.direction == pytest.approx(expected.direction, rel=1e-8, abs=1e-10)
    assert found.band_lengths == pytest.approx(expected.band_lengths, rel=1e-9)
    pairs = [
        (found.after_rope, expected.after_rope),
        (found.before_rope, expected.before_rope),
        *zip(found.of_bins, expected.of_bins, strict=True),
    ]
    for one, other in pairs:
        assert one.mean == pytest.approx(other.mean, rel=1e-8, abs=1e-10)
        assert one.covariance == pytest.approx(other.covariance, rel=1e-8, abs=1e-10)


def test_a_bin_is_empty_without_its_only_text() -> None:
    Q, position, weight = sample()
    own = position >= 96
    bins = Bins(32, 128)
    left = query_sums(Q, position, weight, bins, None) - query_sums(
        Q[own], position[own], weight[own], bins, None
    )
    assert left.rows[3] == 0
    assert 3 not in left.fit().known_bins


def test_one_query_is_too_few() -> None:
    with pytest.raises(ValueError, match="1 queries at position 4 or later"):
        fit_queries(np.ones((3, 2)), np.array([0.0, 3.0, 4.0]), np.ones(3), Bins(8, 8), None)
