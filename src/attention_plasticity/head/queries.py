"""The queries of a head in the positional basis: regression on position, rotation, residuals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.numeric.position import (
    Basis,
    Regression,
    reflection_vector,
    regress,
    residual_variance,
    rotate_vector,
    rotate_with_residuals,
)
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Array, Ints


@dataclass(frozen=True)
class RotatedQueries:
    """Queries of a head in the positional basis, sorted by bucket."""

    fit: Regression
    basis: Basis
    position: Array  # (n,)
    bucket: Ints  # (n,)
    example_id: Ints | None  # (n,)
    vectors: Array  # (n, d)
    alpha: Array  # (d,)
    beta: Array  # (d,) only the first entry is not zero
    residuals: Array  # (d, n)
    resid_var: Array  # (d,)

    @classmethod
    def of(cls, queries: HeadRows, signs: Array) -> RotatedQueries:
        """Regress on position, rotate, and take the residuals."""
        fit = regress(queries.position, queries.vectors)
        u = reflection_vector(fit.beta * signs)
        alpha = rotate_vector(fit.alpha, signs, u)
        beta = rotate_vector(fit.beta, signs, u)
        order = np.argsort(queries.bucket, kind="stable")
        position, bucket = queries.position[order], queries.bucket[order]
        examples = None if queries.example_id is None else queries.example_id[order]
        vectors, residuals = rotate_with_residuals(  # (n, d), (d, n)
            queries.vectors, signs, u, order, position, alpha, beta
        )
        resid_var = residual_variance(residuals, fit.mean_square)
        return cls(
            fit,
            Basis(signs, u),
            position,
            bucket,
            examples,
            vectors,
            alpha,
            beta,
            residuals,
            resid_var,
        )
