"""Rotary bands and the kernel: plain loops over pairs, and again without each group of texts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.bands import (
    CONSTANT,
    FEW_DISTANCES,
    FEWEST_PAIRS,
    UNTURNED,
    PairedKeys,
    band_columns,
    band_eighths,
)
from attention_plasticity.measure.position import moments_before
from attention_plasticity.measure.streams import Streams
from attention_plasticity.read.layer import Layer, LayerRotation
from attention_plasticity.read.rows import Keys, Queries
from attention_plasticity.read.texts import DumpTexts
from qk_dump.layers import RotaryRecord
from qk_dump.reader import HeadRows

FREQUENCIES = np.array([1.0, 0.2, 0.01])
BANDS, WIDTH = 3, 8  # two dimensions do not turn
SCALE = 1 / math.sqrt(WIDTH)
HALVES = RotaryRecord(tuple(FREQUENCIES.tolist()))
R2 = "kernel_R2"


class Head(NamedTuple):
    """Vectors before RoPE as complex bands, the dimensions that do not turn, and places."""

    bands: np.ndarray  # (n, m) complex
    rest: np.ndarray  # (n, 2)
    position: np.ndarray  # (n,)
    text: np.ndarray  # (n,)
    weight: np.ndarray  # (n,)


def head(seed, texts=6, length=40, spread=1.0):
    """Bands with a mean, an effect of the text and noise; the last text has half the length."""
    rng = np.random.default_rng(seed)
    text, position = np.divmod(np.arange(texts * length - length // 2), length)
    n = len(text)

    def numbers(size):
        return rng.standard_normal((size, BANDS)) + 1j * rng.standard_normal((size, BANDS))

    bands = numbers(1) + spread * (0.5 * numbers(texts)[text] + numbers(n))
    rest = rng.standard_normal(2) + spread * rng.standard_normal((n, 2))
    return Head(bands, rest, position.astype(float), text, rng.uniform(0.5, 2.0, n))


def rows(one, known):
    """Fields of queries and keys of a layer, turned by RoPE."""
    turned = one.bands * np.exp(1j * np.outer(one.position, FREQUENCIES))
    X = np.concatenate([turned.real, turned.imag, one.rest], axis=1)
    columns = {"bucket": np.zeros(len(X), np.int64), "position": one.position}
    columns |= {"vector": X, "example_id": one.text}
    return {
        "rows": HeadRows(columns, one.position.max()),
        "exponent": 0,
        "weight": one.weight,
        "layer": Layer(rotation=LayerRotation(HALVES)),
        "text": one.text,
        "group": one.text * 3 % 16 if known else None,
    }


def found_of(q, k, known=True):
    visible, reason = Visible(), "the texts are not known"
    queries = Queries(**rows(q, known), window=None, visible=visible, no_errors=reason)
    keys = Keys(**rows(k, known), texts=DumpTexts())
    paired = PairedKeys.of(queries, keys, moments_before(keys), Streams(0, 0, 0))
    return band_columns(queries, keys, moments_before(queries), paired)


class Pairs(NamedTuple):
    """All pairs of a query and an earlier key of its text."""

    text: np.ndarray  # (pairs,)
    weight: np.ndarray  # (pairs,)
    distance: np.ndarray  # (pairs,)
    parts: np.ndarray  # (pairs, m + 1) the product in every band and in the other dimensions


def all_pairs(q, k):
    found = []
    for i, j in np.ndindex(len(q.text), len(k.text)):
        distance = q.position[i] - k.position[j]
        if q.text[i] == k.text[j] and distance > 0:
            turned = q.bands[i] * np.exp(1j * FREQUENCIES * distance) * k.bands[j].conj()
            parts = [*turned.real, float(q.rest[i] @ k.rest[j])]
            found.append((q.text[i], q.weight[i] * k.weight[j], distance, parts))
    return Pairs(*(np.array(column) for column in zip(*found, strict=True)))


def plain(q, k, pairs, edges, counted):
    """Every column from rows and pairs; `edges` and `counted` are those of all texts."""
    mean_q, mean_k = (np.average(one.bands, axis=0, weights=one.weight) for one in (q, k))
    rest = np.average(q.rest, axis=0, weights=q.weight) @ np.average(
        k.rest, axis=0, weights=k.weight
    )
    length_q, length_k = (np.average(abs(one.bands), axis=0, weights=one.weight) for one in (q, k))
    covariance = np.cov(pairs.parts.T, aweights=pairs.weight, ddof=0)
    logits, kernel = [], []
    for first, end in edges:
        inside = (pairs.distance >= first) & (pairs.distance < end)
        own = pairs.weight[inside]
        waves = np.exp(1j * np.outer(pairs.distance[inside], FREQUENCIES))
        value = (mean_q * waves * mean_k.conj()).real.sum(axis=1) + rest
        logits.append(np.average(pairs.parts[inside].sum(axis=1), weights=own) if own.sum() else 0)
        kernel.append(np.average(value, weights=own) if own.sum() else 0)
    mean, line = np.array(logits), np.array(kernel)
    return {
        "variance_share": covariance.sum(axis=0)[:BANDS] / covariance.sum(),
        "unturned": covariance.sum(axis=0)[BANDS] / covariance.sum(),
        "norm_product": SCALE * length_q * length_k,
        "q_concentration": abs(mean_q) / length_q,
        "k_concentration": abs(mean_k) / length_k,
        "kernel": SCALE * line,
        "mean_logit": SCALE * mean,
        R2: 1 - np.var((mean - line)[counted]) / np.var(mean[counted]),
    }


class Refits(NamedTuple):
    """The columns of all texts, and without each; the largest distance in each text."""

    whole: dict[str, Any]
    left: list[dict[str, Any]]
    reach: np.ndarray  # (texts,)

    def jackknife(self, name, place=..., first=0.0):
        """Value and standard error of the textbook, of the texts that reach a distance."""
        left = np.array([np.asarray(one[name])[place] for one in self.left])[self.reach >= first]
        n, mean = len(left), left.mean(axis=0)
        value = n * np.asarray(self.whole[name])[place] - (n - 1) * mean
        return value, np.sqrt((n - 1) / n * ((left - mean) ** 2).sum(axis=0))


def refits(q, k, found):
    table, pairs = found.tables["kernel"], all_pairs(q, k)
    edges = np.stack([table["first_distance"], np.array(table["last_distance"]) + 1], axis=1)
    counted = np.array(table["n_pairs"]) >= FEWEST_PAIRS
    assert sum(table["n_pairs"]) == len(pairs.text)  # the sample has every pair

    def without(text):
        parts = (type(one)(*(part[one.text != text] for part in one)) for one in (q, k, pairs))
        return plain(*parts, edges, counted)

    texts = np.unique(q.text)
    reach = np.array([pairs.distance[pairs.text == text].max() for text in texts])
    return Refits(without(-1), [without(text) for text in texts], reach)


@pytest.fixture(scope="module")
def measured():
    q, k = head(4), head(5)
    found = found_of(q, k)
    return found, refits(q, k, found)


NAMES = ("variance_share", "norm_product", "q_concentration", "k_concentration")


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_bands_equal_refits(measured, name):
    found, plain = measured
    value, error = plain.jackknife(name)
    table = found.tables["bands"]
    np.testing.assert_allclose(table[name], value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(table[f"{name}_se"], error, rtol=1e-3)
    assert table["n_groups"] == [6] * BANDS


def test_mean_logits_and_the_kernel_equal_refits(measured):
    found, plain = measured
    table = found.tables["kernel"]
    np.testing.assert_allclose(table["kernel"], plain.whole["kernel"], rtol=1e-4, atol=1e-5)
    for place, first in enumerate(table["first_distance"]):
        value, error = plain.jackknife("mean_logit", place, first)
        assert table["mean_logit"][place] == pytest.approx(value, rel=1e-4, abs=1e-5)
        assert table["mean_logit_se"][place] == pytest.approx(error, rel=1e-3)
        assert table["n_groups"][place] == (plain.reach >= first).sum()
    assert min(table["n_groups"]) == 5  # one text is shorter
    value, error = plain.jackknife(R2)
    assert found.values[R2] == pytest.approx(value, rel=1e-4)
    assert found.values[f"{R2}_se"] == pytest.approx(error, rel=1e-3)


def test_shares_of_eighths_have_influences(measured):
    found, plain = measured
    shares = [one for one in found.quantities if one[0] != R2]
    assert [one[:2] for one in shares[1:]] == [("band_share", n) for n in (0.0, 2.0, 5.0)]
    assert shares[0][0] == "unturned_share"
    expected = [plain.jackknife("unturned")]
    expected += [plain.jackknife("variance_share", place) for place in range(BANDS)]
    for (_, _, one), (value, error) in zip(shares, expected, strict=True):
        assert one.value == pytest.approx(value, rel=1e-4, abs=1e-6)
        assert one.standard_error == pytest.approx(error, rel=1e-3)
        assert one.groups == 6
    assert sum(one.value for _, _, one in shares) == pytest.approx(1.0)
    np.testing.assert_allclose(sum(one.influences for _, _, one in shares), 0.0, atol=1e-12)


def test_amplitude_and_phase_are_those_of_the_kernel(measured):
    """Σ |μq||μk| cos(ωΔ + φ) with the phase of queries minus that of keys."""
    q, k, (found, _) = head(4), head(5), measured
    rest = [np.average(one.rest, axis=0, weights=one.weight) for one in (q, k)]
    bands, kernel = found.tables["bands"], found.tables["kernel"]
    for place, delta in enumerate(range(1, 8)):  # bins of one distance
        waves = np.cos(FREQUENCIES * delta + np.array(bands["kernel_phase"]))
        value = bands["kernel_amplitude"] @ waves + SCALE * rest[0] @ rest[1]
        assert kernel["kernel"][place] == pytest.approx(value, rel=1e-4, abs=1e-5)
        assert kernel["distance"][place] == pytest.approx(delta)


@settings(max_examples=8)
@given(st.integers(0, 10_000))
def test_the_kernel_explains_a_head_without_content(seed):
    found = found_of(head(seed, spread=0.0), head(seed + 1, spread=0.0))
    assert found.values[R2] == pytest.approx(1.0, abs=1e-6)
    assert found.values[f"{R2}_se"] == pytest.approx(0.0, abs=1e-6)
    kernel, mean = (np.array(found.tables["kernel"][name]) for name in ("kernel", "mean_logit"))
    np.testing.assert_allclose(kernel[:7], mean[:7], rtol=1e-4, atol=1e-4)  # of one distance
    np.testing.assert_allclose(kernel, mean, atol=0.02)  # only the mean logit is without bias


def test_equal_logits_have_no_shares():
    q = head(0)
    q = q._replace(bands=0.0 * q.bands, rest=np.ones_like(q.rest))
    found = found_of(q, q)
    assert np.isnan(found.tables["bands"]["variance_share"]).all()
    assert math.isnan(found.values[R2])
    assert found.reasons[R2] == CONSTANT


def test_few_bins_few_groups_and_unknown_texts():
    few = found_of(head(0, texts=2, length=6), head(1, texts=2, length=6))
    assert few.reasons[R2] == FEW_DISTANCES
    assert np.isnan(few.tables["kernel"]["mean_logit_se"]).all()
    q, k = head(0, texts=3), head(1, texts=3)
    three, unknown = found_of(q, k), found_of(q, k, known=False)
    for found, groups in ((three, 3), (unknown, math.nan)):
        expected = refits(q, k, found).whole
        for name in NAMES:
            np.testing.assert_allclose(found.tables["bands"][name], expected[name], rtol=1e-4)
            assert np.isnan(found.tables["bands"][f"{name}_se"]).all()
        assert found.values[R2] == pytest.approx(expected[R2], rel=1e-4)
        assert math.isnan(found.values[f"{R2}_se"])
        np.testing.assert_equal(found.tables["bands"]["n_groups"], [groups] * BANDS)
    assert unknown.reasons[f"{R2}_se"] == "the texts are not known"
    assert not unknown.quantities


def test_bands_in_eighths():
    frequency = np.ones(64)
    assert band_eighths(frequency).tolist() == np.repeat(np.arange(8), 8).tolist()
    frequency[5:20] = 0.0
    found = band_eighths(frequency)
    assert (found[5:20] == UNTURNED).all()
    assert found[20:].tolist() == band_eighths(np.ones(64))[20:].tolist()
    assert band_eighths(np.ones(3)).tolist() == [0, 2, 5]
