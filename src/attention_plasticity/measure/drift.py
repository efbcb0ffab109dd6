"""The table of drift: along which axis vectors change with position, after and before RoPE."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attention_plasticity.estimate.moments import COMPONENTS, Moments, product
from attention_plasticity.measure.found import NOT_FINITE, Found
from attention_plasticity.metrics import BEFORE_ROPE
from attention_plasticity.read.rows import Keys, Queries

NO_VARIANCE = "the vectors do not vary"
FEW_DIMENSIONS = "the vectors do not vary along a further dimension"
ONE_POSITION = "all rows are at one position"
ONE_GROUP = "the rows come from one group of texts"


class Frame(NamedTuple):
    """Moments of queries and keys in one frame; None: not known."""

    queries: Moments | None
    keys: Moments | None


def drift_row(queries: Queries, keys: Keys, after: Frame, before: Frame) -> Found:
    """The row of a head; empty if the texts of the queries are not known."""
    found = Found("drift")
    if queries.group is None or keys.group is None:
        return found
    scale = keys.layer.logits.scale
    scale = 1.0 / math.sqrt(keys.rows.width) if scale is None else scale
    length = _longest_text(queries, keys)
    with np.errstate(over="ignore", under="ignore"):
        unit = float(np.ldexp(scale * length, queries.exponent + keys.exponent))
    why = keys.layer.rotation.problem or ""
    for ending, frame in (("", after), (BEFORE_ROPE, before)):
        for kind, own, other in (("q", *frame), ("k", *frame[::-1])):
            _add_axis(found, f"{kind}_drift_r{ending}", own, why)
            _add_logits(found, f"{kind}_logit_drift{ending}", own, other, unit, why)
            _add_components(found, kind, ending, own, why)
    known = [one for one in (*after, *before) if one is not None]
    found.add({"n_groups": min(len(one.groups) for one in known)})
    return found


def _longest_text(queries: Queries, keys: Keys) -> float:
    """Tokens of the longest text."""
    if keys.texts.bins is not None:
        return float(keys.texts.bins.context)
    return max(float(queries.position.max()), float(keys.position.max())) + 1.0


def _add_axis(found: Found, name: str, own: Moments | None, no_rotation: str) -> None:
    """The cross-fitted correlation with position."""
    if own is None:
        found.add_unknown((name,), no_rotation)
        return
    why = NOT_FINITE
    if not own.varies:
        why = NO_VARIANCE
    elif not own.moves:
        why = ONE_POSITION
    elif len(own.groups) < 2:
        why = ONE_GROUP
    found.add_quantity(name, own.correlation, why)


def _add_logits(
    found: Found,
    name: str,
    own: Moments | None,
    other: Moments | None,
    unit: float,
    no_rotation: str,
) -> None:
    """What the drift of the own vectors changes in the logit with the mean of the others."""
    if own is None or other is None:
        found.add_unknown((name,), no_rotation)
        return
    change = product(own.slopes, other.means, own.present | other.present)
    with np.errstate(over="ignore", invalid="ignore"):
        found.add_quantity(name, change.times(unit), ONE_POSITION)


def _add_components(
    found: Found, kind: str, ending: str, own: Moments | None, no_rotation: str
) -> None:
    """Shares of variance of two components, and their correlations with position."""
    components = None if own is None else own.components
    for number in range(COMPONENTS):
        name = f"{kind}_pc{number}"
        share, r, why = math.nan, math.nan, no_rotation
        if own is not None and components is not None:
            share, r = float(components.share[number]), float(components.r[number])
            why = FEW_DIMENSIONS if own.varies else NO_VARIANCE
        found.add({f"{name}_share{ending}": share}, why)
        still = own is not None and own.varies and not own.moves
        found.add({f"{name}_r{ending}": r}, ONE_POSITION if still else why)
