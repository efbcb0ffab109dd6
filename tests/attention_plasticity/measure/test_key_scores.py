"""Scores of keys against plain loops with explicit rotation matrices, and laws of scale."""

from __future__ import annotations

import numpy as np
import pytest

from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.key_scores import SCORES, KeyScores, mean_turn
from attention_plasticity.measure.later_queries import LaterQueries, TextRows
from attention_plasticity.measure.query_fit import QueryFit, QueryGaussian, query_sums
from attention_plasticity.read.bins import Bins
from qk_dump.rotary import RotaryRecord
from rotated_queries import HALVES, INTERLEAVED, RECORDS, rotation, sample

D, SCALE = 5, 0.3
BINS = Bins(32, 128)
QUERIES = LaterQueries(first=20, end=110, near=8)


def fits(record: RotaryRecord | None, heads: int = 2) -> list[QueryFit]:
    """Fits to different queries."""
    found = []
    for head in range(heads):
        rows = TextRows(*sample(n=400, record=record, seed=head))
        found.append(query_sums(rows, BINS, record).fit())
    return found


def keys(n: int = 40, length: int = 110, seed: int = 9) -> TextRows:
    """Keys at different positions, with unequal weights."""
    rng = np.random.default_rng(seed)
    position = np.sort(rng.choice(length, n, replace=False)).astype(np.float64)
    return TextRows(rng.standard_normal((n, D)), position, rng.uniform(1, 5, n))


def scores(
    known: list[QueryFit],
    own: TextRows,
    record: RotaryRecord | None,
    queries: LaterQueries = QUERIES,
) -> dict[str, np.ndarray]:
    """All scores of keys."""
    return KeyScores(known, own, queries, SCALE, record, BINS.size).all()


def weight_of(k: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    """Mean of exp(s·q·k) over queries of a Gaussian."""
    return float(np.exp(SCALE * (k @ mean) + 0.5 * SCALE**2 * (k @ covariance @ k)))


def received(
    own: TextRows, queries: LaterQueries, parts: list[tuple[int, int, list[QueryGaussian]]]
) -> np.ndarray:
    """(n,) attention of every key, with a loop over the positions of parts of the text."""
    total = np.zeros(len(own.position))
    for start, end, heads in parts:
        last = queries.visible.end(own.position)
        visible = [j for j, p in enumerate(own.position) if p < end and last[j] > start]
        for gaussian in heads:
            raw = {
                j: weight_of(own.vectors[j], gaussian.mean, gaussian.covariance) for j in visible
            }
            whole = sum(own.weight[j] * raw[j] for j in visible)
            for j in visible:
                for p in range(max(start, queries.first), min(end, queries.end)):
                    if own.position[j] + queries.near <= p < last[j]:
                        total[j] += raw[j] / whole / len(heads)
    return total


def edges(parts: int, queries: LaterQueries) -> list[tuple[int, int, int]]:
    """Bin, first position and end of parts of bins, within the scored positions."""
    step = BINS.size // parts
    found = []
    for start in range(0, 128, step):
        low, high = max(start, queries.first), min(start + step, queries.end)
        if low < high:
            found.append((start // BINS.size, low, high))
    return found


@RECORDS
@pytest.mark.parametrize("visible", [Visible(), Visible(24), Visible(50, chunked=True)])
def test_bucket_gaussian_is_a_sum_over_later_queries(
    record: RotaryRecord | None, visible: Visible
) -> None:
    own, known = keys(), fits(record)
    queries = LaterQueries(20, 110, 8, visible)
    found = scores(known, own, record, queries)["bucket_gaussian"]
    parts = [(s, e, [fit.of_bin(b) for fit in known]) for b, s, e in edges(1, queries)]
    expected = received(own, queries, parts)
    assert (expected == 0).any()
    assert np.exp(found) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@RECORDS
@pytest.mark.parametrize("visible", [Visible(), Visible(24)])
def test_exact_rotation_turns_mean_and_covariance(
    record: RotaryRecord | None, visible: Visible
) -> None:
    own, known = keys(), fits(record)
    queries = LaterQueries(20, 110, 8, visible)
    found = scores(known, own, record, queries)["exact_rotation"]
    parts = []
    for _, start, end in edges(4, queries):
        R = rotation((start + end - 1) / 2, record, D)
        turned = [
            QueryGaussian(R @ fit.before_rope.mean, R @ fit.before_rope.covariance @ R.T)
            for fit in known
        ]
        parts.append((start, end, turned))
    assert np.exp(found) == pytest.approx(received(own, queries, parts), rel=1e-9, abs=1e-15)


@RECORDS
def test_one_gaussian_and_mean_rotation(record: RotaryRecord | None) -> None:
    own, known = keys(), fits(record)
    found = scores(known, own, record)
    R = np.mean([rotation(p, record, D) for p in range(20, 110)], axis=0)
    for name in ("gaussian", "expected_attention"):
        expected = np.zeros(len(own.position))
        for fit in known:
            mean, covariance = fit.after_rope.mean, fit.after_rope.covariance
            if name == "expected_attention":
                mean, covariance = R @ fit.before_rope.mean, R @ fit.before_rope.covariance @ R.T
            raw = np.array([weight_of(k, mean, covariance) for k in own.vectors])
            expected += raw / (own.weight * raw).sum() / len(known)
        assert np.exp(found[name]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("record", [HALVES, INTERLEAVED])
def test_triattention(record: RotaryRecord) -> None:
    """Angles and lengths of every band, one key and one distance at a time."""
    own, known = keys(), fits(record)
    found = scores(known, own, record)["triattention"]
    if record.pairing == "halves":
        bands, rest = [(0, 2), (1, 3)], [4]
    else:
        bands, rest = [(1, 2), (3, 4)], [0]
    expected = np.zeros(len(own.position))
    for fit in known:
        mu = fit.before_rope.mean
        score = np.zeros(len(own.position))
        for j, p in enumerate(own.position):
            k = rotation(-p, record, D) @ own.vectors[j]
            for f, (a, b) in enumerate(bands):
                size, length = np.hypot(mu[a], mu[b]), np.hypot(k[a], k[b])
                phase = np.arctan2(mu[b], mu[a]) - np.arctan2(k[b], k[a])
                waves = [
                    size * length * np.cos(record.frequencies[f] * delta + phase)
                    for delta in (8, 16, 32, 64)
                ]
                score[j] += np.mean(waves) + (fit.band_lengths[f] - size) * length
            score[j] += mu[rest] @ k[rest]
            more = fit.band_lengths[2] - np.linalg.norm(mu[rest])
            score[j] += more * np.linalg.norm(k[rest])
        centred = score - (own.weight * score).sum() / own.weight.sum()
        expected += centred / np.sqrt((own.weight * centred**2).sum() / own.weight.sum()) / 2
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-10)


def test_norm_and_filter() -> None:
    own, known = keys(), fits(HALVES)
    found = scores(known, own, HALVES)
    assert found["key_norm"] == pytest.approx([np.sqrt((k**2).sum()) for k in own.vectors])
    mean = (known[0].direction + known[1].direction) / 2
    assert found["q_filter"] == pytest.approx([k @ mean for k in own.vectors])
    assert tuple(found) == SCORES


def test_mean_turn_of_no_and_of_whole_turns() -> None:
    found = mean_turn(np.array([0.0, 2 * np.pi, 0.7, 1e-9]), 3, 50)
    turns = np.exp(1j * np.outer([0.0, 0.0, 0.7, 1e-9], np.arange(3, 50)))
    assert found == pytest.approx(turns.mean(axis=1), abs=1e-9)


@RECORDS
def test_queries_times_c_and_keys_over_c_change_no_order(record: RotaryRecord | None) -> None:
    own, rows = keys(), TextRows(*sample(n=400, record=record))
    plain = scores([query_sums(rows, BINS, record).fit()], own, record)
    larger = TextRows(4 * rows.vectors, rows.position, 3 * rows.weight)
    smaller = own._replace(vectors=own.vectors / 4)
    scaled = scores([query_sums(larger, BINS, record).fit()], smaller, record)
    for name in SCORES:
        factor = 0.25 if name in ("key_norm", "q_filter") else 1.0
        assert scaled[name] == pytest.approx(factor * plain[name], rel=1e-9, abs=1e-12)
