"""Queries that RoPE turned by explicit matrices, for tests of scores of keys."""

import numpy as np
import pytest

from qk_dump.layers import RotaryRecord

HALVES = RotaryRecord((0.9, 0.03))
INTERLEAVED = RotaryRecord((0.9, 0.03), start=1, pairing="interleaved")
RECORDS = pytest.mark.parametrize("record", [None, HALVES, INTERLEAVED])


def rotation(p, record, d):
    """(d, d) the matrix by which RoPE turns a vector at position p, entry by entry."""
    R = np.eye(d)
    if record is None:
        return R
    m = len(record.frequencies)
    for f, omega in enumerate(record.frequencies):
        a, b = record.start + f, record.start + m + f
        if record.pairing == "interleaved":
            a, b = record.start + 2 * f, record.start + 2 * f + 1
        R[a, a] = R[b, b] = np.cos(p * omega)
        R[b, a] = np.sin(p * omega)
        R[a, b] = -R[b, a]
    return R


def sample(n=240, d=5, record=None, seed=0):
    """Queries after RoPE, their positions from 0 to 127, and unequal weights."""
    rng = np.random.default_rng(seed)
    before = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + rng.standard_normal(d)
    position = rng.integers(0, 128, n).astype(np.float64)
    after = np.stack([rotation(p, record, d) @ q for p, q in zip(position, before, strict=True)])
    return after, position, rng.uniform(1, 20, n)
