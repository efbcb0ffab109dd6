"""Position in queries and keys before RoPE: shares of variance, and the share of the mean query."""

from __future__ import annotations

from attention_plasticity.estimate.moments import Moments
from attention_plasticity.measure.found import Found
from attention_plasticity.metrics import UNROTATED
from attention_plasticity.read.rows import Keys, Queries, Rows

ALL_ZERO = "all queries are zero"


def moments_before(rows: Rows) -> Moments | None:
    """Moments of vectors before RoPE; None if RoPE cannot be undone."""
    rows = rows.evenly
    if rows.before is None:
        return None
    return Moments.of(rows.position, rows.before, rows.weight, rows.group)


def moments_after(rows: Rows) -> Moments | None:
    """Moments of vectors as they enter the attention; None if it is not known how they do."""
    rows = rows.evenly
    if rows.in_attention_problem is not None:
        return None
    return Moments.of(rows.position, rows.after, rows.weight, rows.group)


def position_columns(
    queries: Queries, keys: Keys, of_queries: Moments | None, of_keys: Moments | None
) -> Found:
    """Columns of the moments before RoPE."""
    found = Found()
    if of_queries is None or of_keys is None:
        found.add_unknown(UNROTATED, keys.layer.rotation.problem or "")
        return found
    quantities = (of_queries.r2, of_keys.r2, of_queries.mean_share)
    for name, one in zip(UNROTATED, quantities, strict=True):
        found.add_quantity(name, one, ALL_ZERO, queries.no_errors)
    return found
