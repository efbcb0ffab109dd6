"""The floor: the work that no implementation can leave out, as directly as numpy allows.

For a query head: reading the same Parquet file into numpy (keys once per group), sorting the tested
dimensions, one pass of moments, one covariance product, the rank-one rotation, and scores of the
same pairs by matrix products. All in float32, without checks and errors. Its numbers are no result.
"""

from __future__ import annotations

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
    """Buckets (n,) and vectors (n, d) of a file, with the rows that a run would use."""
    table = pq.read_table(path, columns=["bucket", "position", "vector"], use_threads=False)
    flat = table["vector"].combine_chunks().flatten().to_numpy().astype(np.float32, copy=False)
    vectors, bucket = flat.reshape(table.num_rows, -1), table["bucket"].to_numpy()
    wanted = subsample(table.num_rows, max_rows, 0)
    return (bucket, vectors) if wanted is None else (bucket[wanted], vectors[wanted])


def one_query_head(path: Path, keys: Floats, pairs: KeyPairs, tested: int, max_rows: int) -> float:
    """The work for one query head; keys are (n, d)."""
    bucket, x = read(path, max_rows)
    columns = np.ascontiguousarray(x[:, :tested].T)  # (tested, n)
    columns.sort(axis=1)
    square = x * x
    moments = [np.einsum("nd,nd->d", square, power) for power in (x, square)]
    covariance = x.T @ x / len(x)  # (d, d)
    u = covariance[0] / np.linalg.norm(covariance[0])
    x = x - np.outer(x @ (2 * u), u)
    w = keys[pairs.first] - keys[pairs.second]  # (pairs, d)
    factor = np.linalg.cholesky(covariance)
    total = 0.0
    for end in np.searchsorted(pairs.owner, np.arange(pairs.owner[-1] + 1)).tolist()[1:]:
        spread = w[:end] @ factor
        z = (w[:end] @ u) / np.sqrt(np.einsum("pd,pd->p", spread, spread))
        tail = ndtr(-np.abs(z))
        total += float((tail * (1 - tail)).sum())
    return total + float(moments[0][0]) + float(columns[0, 0]) + float(bucket[0])
