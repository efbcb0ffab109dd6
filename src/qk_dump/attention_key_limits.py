"""Values that the attention columns of single keys and of tokens can have.

Names are those of `attention_limits`. A column that a file does not have, and a row without a known
value (NaN or −1), break no rule.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qk_dump.attention_columns import (
    ARGMAX_POSITION,
    DUPLICATE_KEYS,
    DUPLICATE_MASS,
    FIRST_MASS,
    INDUCTION_KEYS,
    INDUCTION_MASS,
    SINK_TOKENS,
    Floats,
    Integers,
)
from qk_dump.attention_queries import ROUNDING, Array, Queries, Rule


def key_rules(query: Queries) -> Iterator[Rule]:
    """Rules for `first_mass` and `argmax_position`.

    Token 0 is one of the tokens 0 to 3 and one key of its distance bin, with a weight of at most
    p₁. The key at `argmax_position` is visible. Its bin has at least its weight p₁, and so have
    `sink_mass` and `first_mass` if they contain this key.
    """
    first, place = query.rows.first_mass, query.rows.argmax_position
    if first is None or place is None:
        return
    at_least, at_most = query.largest_weight
    least, most = query.first_token_bounds(1)
    most = np.minimum(np.minimum(most, query.rows.sink_mass), at_most)
    yield Rule(
        FIRST_MASS,
        (first < np.maximum(least, 0) - ROUNDING) | (first > most + ROUNDING),
        lambda row: (
            f"{first[row]:g}, but the other columns allow {max(0, least[row]):g} to "
            f"{max(0, most[row]):g} at position {query.position[row]:.0f}"
        ),
    )
    known = place >= 0  # (n,)
    distance = query.position - place  # (n,)
    yield Rule(
        ARGMAX_POSITION,
        known & ((distance < 0) | (distance >= query.visible)),
        lambda row: (
            f"{place[row]}, but a query at position {query.position[row]:.0f} sees "
            f"{query.visible[row]:.0f} keys up to its own"
        ),
    )
    room = query.rows.mass_by_distance[np.arange(len(place)), query.bin_of(distance)]  # (n,)
    room = np.where(place < SINK_TOKENS, np.minimum(room, query.rows.sink_mass), room)
    with np.errstate(invalid="ignore"):
        room = np.where((place == 0) & ~np.isnan(first), np.minimum(room, first), room)
    yield Rule(
        ARGMAX_POSITION,
        known & (at_least > room + ROUNDING),
        lambda row: (
            f"{place[row]}: the largest weight, {at_least[row]:g} or more, does not fit into the "
            f"weight there, {room[row]:g}"
        ),
    )


def token_rules(query: Queries) -> Iterator[Rule]:
    """Rules for duplicate and induction keys.

    Duplicate keys are before the query, induction keys are after token 0. Every key has at most the
    weight p₁, and all of them at most M, duplicate keys M without the key of the query itself.
    """
    rows, total = query.rows, query.total
    if rows.duplicate_mass is None or rows.duplicate_keys is None:
        return
    if rows.induction_mass is None or rows.induction_keys is None:
        return
    earlier, later = query.visible - 1, np.minimum(query.visible, query.position)
    others = total  # (n,)
    if rows.mass_by_distance.shape[1] > 1:  # else the only bin has all keys
        others = total - rows.mass_by_distance[:, 0]
    yield from _of_kind(
        query,
        (DUPLICATE_MASS, rows.duplicate_mass, others),
        (DUPLICATE_KEYS, rows.duplicate_keys, earlier),
    )
    yield from _of_kind(
        query,
        (INDUCTION_MASS, rows.induction_mass, total),
        (INDUCTION_KEYS, rows.induction_keys, later),
    )


def _of_kind(
    query: Queries, mass: tuple[str, Floats, Array], keys: tuple[str, Integers, Array]
) -> Iterator[Rule]:
    """Rules for weight and number of some keys: (column, values, most)."""
    mass_name, masses, most_mass = mass
    keys_name, numbers, most_keys = keys
    yield Rule(
        keys_name,
        numbers > most_keys,
        lambda row: f"{numbers[row]}, but the query sees at most {most_keys[row]:.0f} such keys",
    )
    most = np.minimum(most_mass, np.maximum(numbers, 0) * query.largest_weight[1])  # (n,)
    yield Rule(
        mass_name,
        (masses < -ROUNDING) | (masses > most + ROUNDING),
        lambda row: (
            f"{masses[row]:g}, but {keys_name} {numbers[row]} and the other columns allow 0 to "
            f"{max(0, most[row]):g}"
        ),
    )
