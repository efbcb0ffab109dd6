"""The floor: the work no implementation can leave out, done as directly as numpy allows.

Per query head: reading the same Parquet into numpy (the keys once per group), sorting the tested
dimensions, one pass of moments, one covariance product, the rank-one rotation, and scoring the same
pairs by matrix product. In float32 throughout, without any of the checks or statistics around it;
the numbers that come out are not a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from scipy.special import ndtr

from attention_plasticity.measure.seed_pairs import KeyPairs
from qk_dump.reader import subsample

Floats = npt.NDArray[np.float32]


def read(path: Path, max_rows: int) -> tuple[npt.NDArray[Any], Floats]:
    """Buckets and vectors of a file, subsampled like ours."""
    table = pq.read_table(path, columns=["bucket", "position", "vector"], use_threads=False)
    flat = table["vector"].combine_chunks().flatten().to_numpy()
    vectors = flat.reshape(table.num_rows, -1)  # (n, d)
    bucket = table["bucket"].to_numpy()
    wanted = subsample(table.num_rows, max_rows, 0)
    return (bucket, vectors) if wanted is None else (bucket[wanted], vectors[wanted])


def one_query_head(
    path: Path, keys: Floats, pairs: KeyPairs, tested: int, max_rows: int = 50_000
) -> float:
    """The floor's work for one query head."""
    bucket, x = read(path, max_rows)
    columns = np.empty((tested, len(x)), np.float32)  # (tested, n)
    for start in range(0, len(x), 64):
        columns[:, start : start + 64] = x[start : start + 64, :tested].T
    columns.sort(axis=1)
    square = x * x
    moments = [np.einsum("nd,nd->d", square, power) for power in (x, square)]
    covariance = x.T @ x / len(x)  # (d, d)
    u = covariance[0] / np.linalg.norm(covariance[0])
    x = x - np.outer(x @ (2 * u), u)
    w = keys[pairs.first] - keys[pairs.second]  # (pairs, d)
    factor = np.linalg.cholesky(covariance)
    total = 0.0
    starts: Sequence[int] = np.searchsorted(pairs.owner, np.arange(pairs.owner[-1] + 1)).tolist()
    for end in starts[1:]:
        spread = w[:end] @ factor
        z = (w[:end] @ u) / np.sqrt(np.einsum("pd,pd->p", spread, spread))
        tail = ndtr(-np.abs(z))
        total += float((tail * (1 - tail)).sum())
    return total + float(moments[0][0]) + float(columns[0, 0]) + float(bucket[0])
