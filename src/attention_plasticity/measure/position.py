"""Position in queries and keys: shares of variance before RoPE, and the drift of mean vectors."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attention_plasticity.estimate.moments import Moments, product
from attention_plasticity.measure.found import Found
from attention_plasticity.metrics import BEFORE_ROPE, UNROTATED
from attention_plasticity.read.rows import Keys, Queries, WeightedRows

ALL_ZERO = "all queries are zero"
ONE_POSITION = "all rows are at one position"


def moments_before(rows: WeightedRows) -> Moments | None:
    """Moments of vectors before RoPE; None if RoPE cannot be undone."""
    rows = rows.evenly
    if rows.before is None:
        return None
    return Moments.of(rows.position, rows.before, rows.weight, rows.group)


def moments_after(rows: WeightedRows) -> Moments | None:
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


class Frame(NamedTuple):
    """Moments of queries and keys in one frame; None: not known."""

    queries: Moments | None
    keys: Moments | None


def drift_row(queries: Queries, keys: Keys, after: Frame, before: Frame) -> Found:
    """The row of the table of drift: what the drift of mean vectors changes in logits.

    It is empty if the texts of the queries are not known.
    """
    found = Found("drift")
    if queries.group is None or keys.group is None:
        return found
    scale = keys.layer.scale
    scale = 1.0 / math.sqrt(keys.rows.width) if scale is None else scale
    length = _longest_text(queries, keys)
    with np.errstate(over="ignore", under="ignore"):
        unit = float(np.ldexp(scale * length, queries.exponent + keys.exponent))
    why = keys.layer.rotation.problem or ""
    for ending, frame in (("", after), (BEFORE_ROPE, before)):
        for kind, own, other in (("q", *frame), ("k", *frame[::-1])):
            name = f"{kind}_logit_drift{ending}"
            if own is None or other is None:
                found.add_unknown((name,), why)
                continue
            change = product(own.slopes, other.means, own.present | other.present)
            with np.errstate(over="ignore", invalid="ignore"):
                found.add_quantity(name, change.times(unit), ONE_POSITION)
    known = [one for one in (*after, *before) if one is not None]
    found.add({"n_groups": min(int(one.present.sum()) for one in known)})
    return found


def _longest_text(queries: Queries, keys: Keys) -> float:
    """Tokens of the longest text."""
    if keys.texts.bins is not None:
        return float(keys.texts.bins.context)
    return max(float(queries.position.max()), float(keys.position.max())) + 1.0
