"""What a head attends to: shares of attention on itself, the previous token, sinks and so on.

Arrays in, arrays out; numpy only. Scores are means over tokens. A score about a key that only some
queries see, such as the previous token, is a mean over these queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.attention_means import far_mass, head_mean
from attention_plasticity.numeric.errors.uncertainty import Estimate
from qk_toolkit.arrays import Array, Ints

SINK_WEIGHT = 0.3
"""A query rests on the first token if its weight there is larger."""


_Floats = npt.NDArray[np.float32]
_Integers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class QueryAttention:
    """The attention columns of n queries; None: not known."""

    lse: _Floats  # (n,)
    max_logit: _Floats  # (n,)
    entropy: _Floats  # (n,)
    sink_mass: _Floats  # (n,)
    mass_by_distance: _Floats  # (n, bins)
    first_mass: _Floats | None  # (n,)
    duplicate_mass: _Floats | None  # (n,)
    duplicate_keys: _Integers | None  # (n,)
    induction_mass: _Floats | None  # (n,)
    induction_keys: _Integers | None  # (n,)


@dataclass(frozen=True)
class RoleQueries:
    """Queries with known attention, their weights, and the groups of their texts."""

    attention: QueryAttention  # n queries
    position: Array  # (n,)
    visible: Array  # (n,) number of keys that a query sees
    weight: Array  # (n,)
    group: Ints | None  # (n,); None: not known

    def mean(self, values: Array, among: npt.NDArray[np.bool_] | None = None) -> Estimate | None:
        """Mean of `values` (n,) over the queries of `among`; None without one, or if unknown."""
        kept = np.arange(len(values)) if among is None else np.flatnonzero(among)
        if len(kept) == 0 or np.isnan(values[kept]).any():
            return None
        group = None if self.group is None else self.group[kept]
        return head_mean(values[kept], self.weight[kept], group)


def role_scores(queries: RoleQueries, distant_from: int) -> dict[str, Estimate]:
    """The scores of a head by their columns. Those that the columns do not give are left out."""
    found = dict(_scores(queries, distant_from))
    return {name: score for name, score in found.items() if score is not None}


def _scores(queries: RoleQueries, distant_from: int) -> Iterator[tuple[str, Estimate | None]]:
    rows, position = queries.attention, queries.position
    masses = rows.mass_by_distance.astype(np.float64)  # (n, bins)
    yield "self_mass", queries.mean(masses[:, 0])
    if masses.shape[1] > 4 or not masses[:, -1].any():  # the last bin has all larger distances
        padded = np.pad(masses, ((0, 0), (0, 4)))
        yield "previous_mass", queries.mean(padded[:, 1], queries.visible > 1)
        yield "local_mass", queries.mean(padded[:, 2:4].sum(axis=1), queries.visible > 2)
    sinks = rows.sink_mass.astype(np.float64)
    yield "far_mass", queries.mean(far_mass(rows.mass_by_distance, sinks, position, distant_from))
    if rows.first_mass is not None:
        first = rows.first_mass.astype(np.float64)  # (n,)
        sees_first = (position > 0) & (queries.visible > position)
        yield "first_mass", queries.mean(first, sees_first)
        yield "sink_rate", queries.mean((first > SINK_WEIGHT).astype(np.float64), sees_first)
    yield "top_weight", queries.mean(top_weights(rows))
    yield "effective_keys", queries.mean(np.exp(rows.entropy.astype(np.float64)))
    yield from _over_chance(queries, "duplicate", rows.duplicate_mass, rows.duplicate_keys)
    yield from _over_chance(queries, "induction", rows.induction_mass, rows.induction_keys)


def _over_chance(
    queries: RoleQueries,
    name: str,
    mass: _Floats | None,
    keys: _Integers | None,
) -> Iterator[tuple[str, Estimate | None]]:
    """Weight of some keys, its value if all visible keys had equal weight, and the difference."""
    if mass is None or keys is None:
        return
    among = keys > 0
    found = queries.mean(mass.astype(np.float64), among)
    chance = queries.mean(keys / queries.visible, among)
    yield f"{name}_mass", found
    yield f"{name}_chance", chance
    yield f"{name}_excess", None if found is None or chance is None else found.minus(chance)


def top_weights(rows: QueryAttention) -> Array:
    """(n,) the largest attention weight of every query."""
    logits = rows.max_logit.astype(np.float64) - rows.lse.astype(np.float64)  # (n,)
    return np.minimum(np.exp(logits), 1.0)  # both are rounded


def repeated_scores(queries: RoleQueries) -> dict[str, Estimate]:
    """The standard scores on random tokens that come twice.

    Only tokens of the second half have an earlier key with the same token. They have exactly one.
    """
    scores = role_scores(queries, 1)
    names = {
        "repeated_induction": "induction_mass",
        "repeated_duplicate": "duplicate_mass",
        "repeated_previous": "previous_mass",
    }
    return {name: scores[other] for name, other in names.items() if other in scores}
