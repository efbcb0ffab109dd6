"""Rotary bands and the kernel: vectors with known bands, plain loops over pairs, errors."""

from __future__ import annotations

import cmath
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.numeric.bands import (
    BandMeans,
    PairLogits,
    VarianceShares,
    band_means,
    standard_errors,
    variance_shares,
)
from attention_plasticity.numeric.distance_pairs import DistancePairs, PlacedRows, distance_pairs
from attention_plasticity.numeric.rotary_kernel import FEWEST_PAIRS, KernelBins, kernel_bins

FREQUENCIES = (1.0, 0.2, 0.01)
BANDS, WIDTH = 3, 8  # two dimensions do not turn


class Head(NamedTuple):
    """Vectors before RoPE as complex bands, the dimensions that do not turn, and places."""

    bands: np.ndarray  # (n, m) complex
    rest: np.ndarray  # (n, 2)
    place: PlacedRows

    @property
    def before(self) -> np.ndarray:
        return np.concatenate([self.bands.real, self.bands.imag, self.rest], axis=1)

    @property
    def turned(self) -> np.ndarray:
        waves = np.exp(1j * np.outer(self.place.position, FREQUENCIES))
        bands = self.bands * waves
        return np.concatenate([bands.real, bands.imag, self.rest], axis=1)

    @property
    def group(self) -> np.ndarray:
        return self.place.text % 16


def head(seed: int, texts: int = 6, length: int = 40, spread: float = 1.0) -> Head:
    """Bands with a mean, an effect of the text and noise; every token of every text."""
    rng = np.random.default_rng(seed)
    text, position = np.divmod(np.arange(texts * length), length)
    n = len(text)

    def numbers(size: int) -> np.ndarray:
        return rng.standard_normal((size, BANDS)) + 1j * rng.standard_normal((size, BANDS))

    bands = numbers(1) + spread * (0.5 * numbers(texts)[text] + numbers(n))
    rest = rng.standard_normal(2) + spread * rng.standard_normal((n, 2))
    weight = rng.uniform(0.5, 2.0, n)
    return Head(bands, rest, PlacedRows(position.astype(float), text, weight))


def means(one: Head, weight: np.ndarray | None = None) -> BandMeans:
    weight = one.place.weight if weight is None else weight
    return band_means(one.before, BANDS, weight, one.group)


def every_pair(q: Head, k: Head) -> DistancePairs:
    return distance_pairs(q.place, k.place, None, 0, 1 << 20, 0)


def shares(q: Head, k: Head, pairs: DistancePairs, weight: np.ndarray) -> VarianceShares:
    logits = PairLogits.of(q.turned, k.turned, BANDS, pairs)
    return variance_shares(logits, weight, q.group[pairs.query])


def kernel(
    q: Head, k: Head, pairs: DistancePairs, q_means: BandMeans, k_means: BandMeans
) -> KernelBins:
    logits = PairLogits.of(q.turned, k.turned, BANDS, pairs)
    group = q.group[pairs.query]
    return kernel_bins(pairs, logits, np.array(FREQUENCIES), q_means, k_means, group)


def test_known_bands() -> None:
    """Four queries at the corners of a square have no mean; equal ones are concentrated."""
    square = np.array([1, 1j, -1, -1j]) * 3.0
    equal = np.full(4, 2.0 - 1.0j)
    half = np.array([1.0, 1.0, 1.0, -1.0])  # 3 and 1 in opposite directions: mean 1/2
    bands = np.stack([square, equal, half], axis=1)
    X = np.concatenate([bands.real, bands.imag, np.zeros((4, 2))], axis=1)
    found = band_means(X, 3, np.ones(4), None)
    assert found.length == pytest.approx([3.0, math.sqrt(5.0), 1.0])
    assert found.concentration == pytest.approx([0.0, 1.0, 0.5], abs=1e-15)
    assert found.phase[1:] == pytest.approx([math.atan2(-1.0, 2.0), 0.0])
    assert np.isnan(found.on_concentration).all()
    weighted = band_means(X, 3, np.array([1.0, 1.0, 1.0, 3.0]), None)
    assert weighted.concentration == pytest.approx([1 / 3, 1.0, 0.0], abs=1e-15)


def test_a_band_without_length() -> None:
    X = np.zeros((5, WIDTH))
    X[:, 1] = 1.0
    found = band_means(X, BANDS, np.ones(5), np.arange(5))
    assert np.isnan(found.concentration).tolist() == [True, False, True]
    assert found.concentration[1] == 1.0
    assert found.mean_length.tolist() == [0.0, 1.0, 0.0]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_shares_equal_a_loop_over_all_pairs(seed: int) -> None:
    q, k = head(seed, texts=3, length=15), head(seed + 1, texts=3, length=15)
    pairs = every_pair(q, k)
    found = shares(q, k, pairs, pairs.weight).share
    logits, weights = [], []
    for i, j in np.ndindex(45, 45):
        distance = q.place.position[i] - k.place.position[j]
        if q.place.text[i] != k.place.text[j] or distance <= 0:
            continue
        turned = [cmath.exp(1j * f * distance) for f in FREQUENCIES]
        parts = [
            (a * turn * b.conjugate()).real
            for a, b, turn in zip(q.bands[i], k.bands[j], turned, strict=True)
        ]
        logits.append([*parts, float(q.rest[i] @ k.rest[j])])
        weights.append(q.place.weight[i] * k.place.weight[j])
    table = np.array(logits)
    covariance = np.cov(table.T, aweights=weights, ddof=0)
    assert found == pytest.approx(covariance.sum(axis=0) / covariance.sum(), rel=1e-9)
    assert found.sum() == pytest.approx(1.0)


def test_one_band_alone_has_all_the_variance() -> None:
    q, k = head(0), head(1)
    only = np.array([0.0, 1.0, 0.0])
    one = q._replace(bands=q.bands * only, rest=0.0 * q.rest)
    found = shares(one, k, every_pair(q, k), every_pair(q, k).weight)
    assert found.share == pytest.approx([0.0, 1.0, 0.0, 0.0], abs=1e-14)
    assert standard_errors(found.influences) == pytest.approx([0.0] * 4, abs=1e-12)


def test_equal_logits_have_no_shares() -> None:
    q = head(0)
    q = q._replace(bands=0.0 * q.bands, rest=np.ones_like(q.rest))
    pairs = every_pair(q, q)
    found = shares(q, q, pairs, pairs.weight)
    assert np.isnan(found.share).all()
    estimate = kernel(q, q, pairs, means(q), means(q)).r2
    assert math.isnan(estimate.value)


def changed(one: Head, g: int, factor: float) -> np.ndarray:
    """Weights of tokens, with those of a group multiplied."""
    return np.where(one.group == g, one.place.weight * factor, one.place.weight)


def test_influences_are_derivatives_by_the_weights_of_a_group() -> None:
    q, k = head(4), head(5)
    pairs = every_pair(q, k)
    step, factor = 1e-4, math.sqrt(6 / 5)  # the small-sample factor of six groups

    def everything(g: int, change: float) -> dict[str, np.ndarray]:
        q_means, k_means = means(q, changed(q, g, change)), means(k, changed(k, g, change))
        own = np.where(q.group[pairs.query] == g, pairs.weight * change, pairs.weight)
        moved = DistancePairs(**{**vars(pairs), "weight": own})
        bins = kernel(q, k, moved, q_means, k_means)
        return {
            "mean": q_means.mean,
            "length": q_means.length,
            "concentration": q_means.concentration,
            "share": shares(q, k, moved, own).share,
            "r2": np.array(bins.r2.value),
            "logit": bins.mean,
        }

    at = everything(0, 1.0)
    bins = kernel(q, k, pairs, means(q), means(k))
    found = {
        "mean": means(q).on_mean,
        "length": means(q).on_length,
        "concentration": means(q).on_concentration,
        "share": shares(q, k, pairs, pairs.weight).influences,
        "r2": bins.r2.influences,
    }
    squares = np.zeros_like(at["logit"])
    for g in range(6):
        more, less = everything(g, 1 + step), everything(g, 1 - step)
        slope = {name: factor * (more[name] - less[name]) / (2 * step) for name in at}
        squares += slope["logit"] ** 2
        for name, influences in found.items():
            assert influences[g] == pytest.approx(slope[name], rel=1e-4, abs=1e-6), name
    assert bins.error == pytest.approx(np.sqrt(squares), rel=1e-5)
    assert not found["share"][6:].any()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_the_kernel_explains_a_head_without_content(seed: int) -> None:
    q, k = head(seed, spread=0.0), head(seed + 1, spread=0.0)
    pairs = every_pair(q, k)
    found = kernel(q, k, pairs, means(q), means(k))
    assert found.r2.value == pytest.approx(1.0, abs=1e-9)
    assert found.r2.standard_error == pytest.approx(0.0, abs=1e-6)
    assert found.kernel == pytest.approx(found.mean, rel=1e-5, abs=1e-5)
    direct = [
        sum((a * b.conjugate() * cmath.exp(1j * f * delta)).real for a, b, f in bands)
        + float(q.rest[0] @ k.rest[0])
        for bands in [list(zip(q.bands[0], k.bands[0], FREQUENCIES, strict=True))]
        for delta in range(1, 8)  # bins of one distance
    ]
    assert found.kernel[:7] == pytest.approx(direct, rel=1e-5, abs=1e-5)
    assert found.distance[:7] == pytest.approx(np.arange(1.0, 8.0))


def test_r2_is_that_of_the_bins() -> None:
    q, k = head(7), head(8)
    pairs = every_pair(q, k)
    found = kernel(q, k, pairs, means(q), means(k))
    counted = pairs.counts >= FEWEST_PAIRS
    mean, line = found.mean[counted], found.kernel[counted]
    left = np.var(mean - line) / np.var(mean)
    assert found.r2.value == pytest.approx(1 - left)
    assert found.r2.groups == 6


def test_amplitude_and_phase_are_those_of_the_kernel() -> None:
    """Σ |μq||μk| cos(ωΔ + φ) with the phase of queries minus that of keys."""
    q, k = head(9), head(10)
    pairs, q_means, k_means = every_pair(q, k), means(q), means(k)
    found = kernel(q, k, pairs, q_means, k_means)
    amplitude = q_means.mean_length * k_means.mean_length
    phase = q_means.phase - k_means.phase
    constant = q_means.mean[6:] @ k_means.mean[6:]
    for place, delta in enumerate(range(1, 8)):
        value = (amplitude * np.cos(np.array(FREQUENCIES) * delta + phase)).sum() + constant
        assert found.kernel[place] == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_few_bins_and_few_groups() -> None:
    q = head(0, texts=2, length=6)
    found = kernel(q, q, every_pair(q, q), means(q), means(q))
    assert math.isnan(found.r2.value)
    assert not found.enough_bins
    assert np.isnan(found.error).all()  # two groups
    q = head(0, texts=3)
    found = kernel(q, q, every_pair(q, q), means(q), means(q))
    assert found.r2.groups == 3
    assert math.isnan(found.r2.standard_error)
    assert not np.isnan(found.error).any()
