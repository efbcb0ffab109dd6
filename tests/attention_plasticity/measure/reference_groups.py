"""Values without bias and their errors: everything is computed again without each group of texts.

Slow and plain on purpose. A quantity is a function of the rows that are left.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import numpy as np

GROUPS = 16


class Expected(NamedTuple):
    """What a quantity should be."""

    value: float
    error: float
    influences: list[float]  # (16,)
    groups: int


def leave_out(value_of, groups):
    """`value_of` gets a function that says whether the rows of a group are used."""
    theta = value_of(lambda g: True)
    G = len(groups)
    if G < 4 or math.isnan(theta):
        return Expected(theta, math.nan, [math.nan] * GROUPS, G)
    others = {out: value_of(lambda g, out=out: g != out) for out in sorted(groups)}
    mean = math.fsum(others.values()) / G
    if math.isnan(mean):
        return Expected(theta, math.nan, [math.nan] * GROUPS, G)
    root = math.sqrt((G - 1) / G)
    influences = [root * (others[g] - mean) if g in groups else 0.0 for g in range(GROUPS)]
    error = math.sqrt(math.fsum(u**2 for u in influences))
    return Expected(theta - (G - 1) * (mean - theta), error, influences, G)


def of_rows(value_of, group):
    """`value_of` gets a mask (n,) of the rows that are used; `group` (n,) are their groups."""
    members = group.tolist()
    return leave_out(lambda keeps: value_of(np.array([keeps(g) for g in members])), set(members))


def mean_of_rows(values, weight, group):
    """A mean of values with weights, row by row."""

    def mean(kept):
        rows = [(v, w) for v, w, used in zip(values, weight, kept, strict=True) if used]
        return math.fsum(v * w for v, w in rows) / math.fsum(w for _, w in rows)

    return of_rows(mean, group)


def layer_facts(root, layer):
    """What dump.json has about a layer."""
    if not (root / "dump.json").exists():
        return {}
    entries = json.loads((root / "dump.json").read_text()).get("layers") or []
    return next((entry for entry in entries if entry["layer"] == layer), {})


def tokens_of(root, position, kind):
    """Tokens that a row stands for: 1 / the probability that it was captured."""
    file = root / "dump.json"
    manifest = json.loads(file.read_text()) if file.exists() else {}
    sampler = manifest.get("sampler")
    if sampler is None or sampler["type"] == "all":
        return 1.0
    rate = sampler["base_rate"] if kind == "q" else sampler.get("key_base_rate")
    rate = sampler["base_rate"] if rate is None else rate
    size = manifest["min_bucket_size"]
    if sampler["type"] == "log_uniform":
        size = 2 ** max(math.ceil(math.log2(size)), math.floor(math.log2(position + 1)))
    return float(max(1.0, size / rate))


def turned(X, angle_at, record):
    """Vectors (n, d) turned by RoPE as if by these numbers of tokens, pair by pair."""
    if record is None:
        return X
    found = X.astype(float)
    m, start = len(record["frequencies"]), record.get("start", 0)
    for pair, frequency in enumerate(record["frequencies"]):
        a, b = start + pair, start + pair + m
        if record.get("pairing") == "interleaved":
            a, b = start + 2 * pair, start + 2 * pair + 1
        number = (found[:, a] + 1j * found[:, b]) * np.exp(1j * frequency * angle_at)
        found[:, a], found[:, b] = number.real, number.imag
    return found


def with_rope(X, position, record):
    """What a model does: cos and sin, both times a factor."""
    found, start = X.astype(float), record.get("start", 0)
    found[:, start : start + 2 * len(record["frequencies"])] *= record.get("scaling", 1.0)
    return turned(found, position, record)
