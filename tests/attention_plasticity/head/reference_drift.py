"""Position in queries and keys before RoPE, from plain sums over rows and numeric derivatives."""

from __future__ import annotations

import cmath
import math
from pathlib import Path
from typing import Any

import numpy as np

from reference_attention import layer_facts, tokens_of
from reference_errors import GROUPS, Estimate, Row, factor, influence_row

NAMES = ("q_R2_unrotated", "k_R2_unrotated", "q_mean_share")
ENDINGS = ("", "_se", "_bias", "_corrected")
_STEP = 0.01


def plain_shares(t: np.ndarray, X: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """R² of a weighted regression, and the squared mean over the mean square, by dimensions."""
    left = total = 0.0
    root = np.sqrt(w)
    design = np.column_stack([np.ones(len(t)), t - t.mean()]) * root[:, None]
    for x in X.T:
        solution = np.linalg.lstsq(design, x * root, rcond=None)[0]
        left += math.fsum((x * root - design @ solution) ** 2)
        total += math.fsum(w * (x - np.average(x, weights=w)) ** 2)
    mean = np.average(X, axis=0, weights=w)
    return 1 - left / total, float(mean @ mean / np.average((X**2).sum(axis=1), weights=w))


def turned_back(X: np.ndarray, position: np.ndarray, facts: Row) -> np.ndarray:
    """Vectors before RoPE, pair by pair as complex numbers."""
    record = facts.get("rotary")
    if record is None:
        return X
    found = X.copy()
    m = len(record["frequencies"])
    for pair, frequency in enumerate(record["frequencies"]):
        a, b = pair, pair + m
        if record["pairing"] == "interleaved":
            a, b = 2 * pair, 2 * pair + 1
        a, b = a + record["start"], b + record["start"]
        for row, p in enumerate(position):
            number = complex(X[row, a], X[row, b]) * cmath.exp(-1j * frequency * p)
            found[row, a], found[row, b] = number.real, number.imag
    return found


def shares(t: np.ndarray, X: np.ndarray, w: np.ndarray, group: np.ndarray) -> list[Estimate]:
    """Both shares with influences and bias: derivatives by the weights of every group."""
    middle = np.array(plain_shares(t, X, w))
    groups = len(set(group.tolist()))
    first, second = np.zeros((GROUPS, 2)), np.zeros((GROUPS, 2))
    for g in set(group.tolist()):
        slopes, bends = [], []
        for step in (_STEP, 2 * _STEP):
            more, less = (
                np.array(plain_shares(t, X, np.where(group == g, w * (1 + sign * step), w)))
                for sign in (1, -1)
            )
            slopes.append((more - less) / (2 * step))
            bends.append((more + less - 2 * middle) / (2 * step**2))
        first[g] = (4 * slopes[0] - slopes[1]) / 3  # the error of the differences is step⁴
        second[g] = (4 * bends[0] - bends[1]) / 3
    if groups < 4:
        first[:], second[:] = math.nan, math.nan
    k = factor(groups)
    return [
        Estimate(float(middle[i]), float(k**2 * second[:, i].sum()), list(k * first[:, i]), groups)
        for i in range(2)
    ]


def drift_tables(root: Path, layer: int, q: Any, k: Any) -> tuple[Row, list[Row]]:
    """Columns of the table of heads, and rows of the table of influences."""
    facts = layer_facts(root, layer)
    if facts.get("rotary") is None and facts.get("rope") is not False:
        columns = [f"{name}{end}" for name in NAMES for end in ENDINGS]
        return dict.fromkeys(columns, math.nan), []
    found = []
    for rows, kind in ((q, "q"), (k, "k")):
        X = turned_back(rows.vectors, rows.position, facts)
        w = np.array([tokens_of(root, float(p), kind) for p in rows.position])
        found.append(shares(rows.position, X, w, rows.example_id % 16))
    estimates = dict(zip(NAMES, (found[0][0], found[1][0], found[0][1]), strict=True))
    metrics: Row = {}
    for name, estimate in estimates.items():
        metrics |= {name: estimate.value, f"{name}_se": estimate.error}
        metrics |= {
            f"{name}_bias": estimate.bias,
            f"{name}_corrected": estimate.value - estimate.bias,
        }
    return metrics, [influence_row(name, math.nan, one) for name, one in estimates.items()]
