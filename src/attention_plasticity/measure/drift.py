"""The table of drift: what the drift of mean vectors changes in logits, after and before RoPE."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attention_plasticity.estimate.moments import Moments, product
from attention_plasticity.measure.found import Found
from attention_plasticity.metrics import BEFORE_ROPE
from attention_plasticity.read.rows import Keys, Queries

ONE_POSITION = "all rows are at one position"


class Frame(NamedTuple):
    """Moments of queries and keys in one frame; None: not known."""

    queries: Moments | None
    keys: Moments | None


def drift_row(queries: Queries, keys: Keys, after: Frame, before: Frame) -> Found:
    """The row of a head; empty if the texts of the queries are not known."""
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
