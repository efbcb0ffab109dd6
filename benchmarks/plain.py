"""The plain way: the original pipeline spelled as a loop over pairs and dimensions.

Rows are read as Python lists, every dimension goes through scipy's own calls, and pairs are drawn
and scored one by one inside the loop over (query bucket, key bucket), as the method's first
description has it. For one query head; the keys are read for every query head anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from scipy import stats

from attention_plasticity.config import RunnerConfig
from attention_plasticity.statistics import make_pos_rotation

Array = npt.NDArray[Any]


def read(path: Path, config: RunnerConfig) -> dict[str, Array]:
    """The columns of a file by way of Python rows, subsampled."""
    table = pq.read_table(path, columns=["bucket", "example_id", "position", "vector"])
    columns = {name: np.array(values) for name, values in table.to_pydict().items()}
    n = len(columns["bucket"])
    if n > config.max_tokens_per_head:
        rng = np.random.default_rng(config.seed)
        chosen = rng.choice(n, config.max_tokens_per_head, replace=False)
        columns = {name: values[chosen] for name, values in columns.items()}
    return columns


def one_query_head(
    query_file: Path, key_file: Path, config: RunnerConfig
) -> dict[tuple[int, int], float]:
    """Plasticity per (query bucket, key bucket), after the statistics around it."""
    queries, keys = read(query_file, config), read(key_file, config)
    x_q, x_k, p, b = queries["vector"], keys["vector"], queries["position"], queries["bucket"]
    buckets = [x_k[keys["bucket"] == bucket].mean(axis=0) for bucket in np.unique(keys["bucket"])]
    signs = np.where(np.mean(buckets, axis=0) < 0, -1.0, 1.0)
    x_q, x_k = x_q * signs, x_k * signs
    d = x_q.shape[1]
    beta = np.array([stats.linregress(p, x_q[:, i]).slope for i in range(d)])
    rotation = make_pos_rotation(beta)  # (d, d)
    x_q, x_k = x_q @ rotation, x_k @ rotation
    alpha, slope, variance = _residual_statistics(p, x_q, config)
    rng = np.random.default_rng(config.seed)
    cells = {}
    for j in np.unique(b):
        inside = b == j
        if j == 0 or inside.sum() < 2:
            continue
        first = alpha + slope * p[inside].mean()
        mean = x_q[inside, 1:].mean(axis=0)
        covariance = np.cov(x_q[inside, 1:], rowvar=False)
        for c in np.unique(keys["bucket"]):
            if c >= j:
                continue
            values = []
            for one, two in _draw_pairs(keys, c, config.num_pairs_per_bucket, rng):
                w = x_k[one] - x_k[two]
                m = w[0] * first + w[1:] @ mean
                v = w[0] ** 2 * variance + w[1:] @ covariance @ w[1:]
                chance = stats.norm.cdf(m / np.sqrt(v))
                values.append(4 * chance * (1 - chance))
            cells[int(j), int(c)] = float(np.mean(values))
    return cells


def _residual_statistics(p: Array, x_q: Array, config: RunnerConfig) -> tuple[float, float, float]:
    n, d = x_q.shape
    dims = np.random.default_rng(config.seed).permutation(np.arange(1, d))
    tested = {0, *dims[: config.normality_max_dims].tolist()}
    fits = []
    for i in range(d):
        fit = stats.linregress(p, x_q[:, i])
        residual = x_q[:, i] - fit.intercept - fit.slope * p
        variance = residual @ residual / (n - 2)
        stats.skew(residual, bias=False)
        stats.kurtosis(residual, bias=False)
        if i in tested:
            stats.kstest(residual / np.sqrt(variance), "norm")
        fits.append((fit.intercept, fit.slope, variance))
    return fits[0]


def _draw_pairs(
    keys: dict[str, Array], bucket: int, count: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Pairs of one bucket, example by chance of holding a pair, two of its keys, one by one."""
    rows = np.flatnonzero(keys["bucket"] == bucket)
    by_example: dict[int, list[int]] = {}
    for row in rows:
        by_example.setdefault(int(keys["example_id"][row]), []).append(int(row))
    groups = [members for members in by_example.values() if len(members) > 1]
    chance = np.array([len(members) * (len(members) - 1) / 2 for members in groups])
    chance /= chance.sum()
    pairs = []
    for _ in range(count):
        members = groups[rng.choice(len(groups), p=chance)]
        one, two = rng.choice(len(members), size=2, replace=False)
        pairs.append((members[one], members[two]))
    return pairs
