"""Values that the attention columns of a query can have.

A query at position p sees the n keys p − n + 1 … p, or some of them. w are their weights, M is the
sum of the weights (1 without learned sinks), m_b the weight of the n_b keys of distance bin b, and
p₁ = exp(max_logit − lse) the largest weight. A mask by content or a bias hides further keys. All
limits hold with too large n and n_b, and with a sum M below 1.

Values that the attention columns of single keys and of tokens can have. Names are those of
`attention_limits`. A column that a file does not have, and a row without a known value (NaN or −1),
break no rule.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qk_dump.attention_columns import (
    ARGMAX_POSITION,
    DUPLICATE_KEYS,
    DUPLICATE_MASS,
    ENTROPY,
    FIRST_MASS,
    INDUCTION_KEYS,
    INDUCTION_MASS,
    LSE,
    MASSES,
    MAX_LOGIT,
    SINK_MASS,
    SINK_TOKENS,
    AttentionRows,
    Floats,
    Integers,
    impossible,
)
from qk_dump.attention_queries import ROUNDING, LayerAttention, Queries, Rule
from qk_dump.remote import DumpPath
from qk_toolkit.arrays import Array, Vectors
from qk_toolkit.errors import DumpError

_LARGEST_EXACT = 2.0**16  # weights exp(logit − lse) of larger float32 logits are not exact


def check_attention(
    rows: AttentionRows,
    position: Array,
    window: int | None,
    layer: LayerAttention,
    path: DumpPath,
    first_row: int,
) -> None:
    """Raise a `DumpError` for the first row that no attention of a query at its position has.

    `rows` are queries of one head. Rows with NaN are not known and not checked, nor are rows whose
    logits are so large that their weights are not exact. `window` is in tokens.
    """
    smallest = np.minimum(np.abs(rows.lse), np.abs(rows.max_logit))
    known = np.flatnonzero(smallest <= _LARGEST_EXACT)  # (n,)
    if not len(known):
        return
    if len(known) < len(position):
        rows, position = rows[known], position[known]
    query = Queries(rows, np.floor(position), window, layer)
    rules = [*_mass_rules(query), *_logit_rules(query), *_entropy_rules(query)]
    rules += [*key_rules(query), *token_rules(query)]
    found = [(int(np.argmax(rule.broken)), rule) for rule in rules if rule.broken.any()]
    if found:
        row, rule = min(found, key=lambda item: item[0])
        number = first_row + int(known[row])
        raise DumpError(impossible(path, number, rule.column, rule.reason(row)))


def _mass_rules(query: Queries) -> Iterator[Rule]:
    sinks, total = query.rows.sink_mass, query.total
    lowest = query.rows.mass_by_distance.min(axis=1)  # (n,)
    yield Rule(
        MASSES,
        (lowest < -ROUNDING) | (total > 1 + ROUNDING),
        lambda row: f"sum {total[row]:g}, smallest {lowest[row]:g}",
    )
    hidden = query.weight_from(query.last_bin + 1)  # (n,)
    yield Rule(
        MASSES,
        hidden > ROUNDING,
        lambda row: (
            f"{hidden[row]:g} is on tokens beyond the {query.visible[row]:.0f} that the query sees"
        ),
    )
    if query.layer.learned_sinks is False:
        yield Rule(
            MASSES, total < 1 - ROUNDING, lambda row: f"sum {total[row]:g}, expected a sum of 1"
        )
    least, most = query.first_token_bounds(SINK_TOKENS)
    yield Rule(
        SINK_MASS,
        (sinks < np.maximum(least, 0) - ROUNDING) | (sinks > most + ROUNDING),
        lambda row: (
            f"{sinks[row]:g}, but {MASSES} allows {max(0, least[row]):g} to {most[row]:g} at "
            f"position {query.position[row]:.0f}"
        ),
    )


def _logit_rules(query: Queries) -> Iterator[Rule]:
    """Rules for the largest weight p₁.

    p₁ ≤ 1. The largest weight is in one of the bins: p₁ ≤ max m_b. No key has more weight:
    m_b ≤ n_b p₁ and M ≤ n p₁. A soft-cap c gives logits from −c to c.
    """
    largest, masses = query.rows.max_logit, query.rows.mass_by_distance
    gap, rounding = query.gap, query.logit_rounding
    lse = query.rows.lse
    yield Rule(
        MAX_LOGIT,
        gap < -rounding,
        lambda row: f"{largest[row]:g} is larger than {LSE} {lse[row]:g}",
    )
    softcap = query.layer.softcap
    if softcap is not None:
        yield Rule(
            MAX_LOGIT,
            np.abs(largest) > softcap + rounding,
            lambda row: f"{largest[row]:g} is beyond the softcap {softcap:g} in dump.json",
        )
    at_least, at_most = query.largest_weight
    heaviest = masses.max(axis=1)  # (n,)
    yield Rule(
        LSE,
        at_least > heaviest + ROUNDING,
        lambda row: (
            f"{lse[row]:g} is too small for {MAX_LOGIT} {largest[row]:g}: a weight of "
            f"{at_least[row]:g} does not fit into {MASSES}, at most {heaviest[row]:g}"
        ),
    )
    needed = np.maximum(_mean_weights(query), (query.total - ROUNDING) / query.visible)  # (n,)
    yield Rule(
        LSE,
        needed > at_most,
        lambda row: (
            f"{lse[row]:g} is too large for {MAX_LOGIT} {largest[row]:g} and {MASSES}: at most "
            f"{query.visible[row]:.0f} keys are visible"
        ),
    )


def _mean_weights(query: Queries) -> Array:
    """(n,) the largest mean weight of the keys of a bin."""
    per_key = (1 / query.sizes).astype(np.float32)  # (bins,) 0 for the last bin
    means = (query.rows.mass_by_distance - np.float32(ROUNDING)) * per_key  # (n, bins)
    last = (query.last_mass - ROUNDING) / query.last_keys  # (n,)
    return np.asarray(np.maximum(means.max(axis=1), last))


def _entropy_rules(query: Queries) -> Iterator[Rule]:
    """Rules for the entropy H = −Σ w ln w.

    Every w is at most p₁, so that H ≥ −M ln p₁. Within a bin, −Σ w ln w is −m_b ln m_b plus m_b
    times the entropy of n_b shares, which is from 0 to ln n_b. Besides the largest weight there are
    n − 1 keys with weight M − p₁: H ≤ −p₁ ln p₁ − (M − p₁) ln((M − p₁)/(n − 1)) (Fano).
    """
    entropy, rounding = query.rows.entropy, query.entropy_rounding
    gap, total = np.maximum(query.gap, 0), np.clip(query.total, 0, 1)
    least = total * gap - query.logit_rounding - ROUNDING * gap  # (n,)
    low, high = _entropy_of_bins(query)
    least = np.maximum(least, low)
    most = np.minimum(high, np.minimum(_largest_entropy(query), _fano(query)))

    def reason(row: int) -> str:
        return (
            f"{entropy[row]:g}, but {LSE}, {MAX_LOGIT}, {MASSES} and {query.visible[row]:.0f} "
            f"visible keys allow {max(0, least[row]):.3g} to {max(0, most[row]):.3g}"
        )

    broken = (entropy < np.maximum(least, 0) - rounding) | (entropy > most + rounding)
    yield Rule(ENTROPY, np.asarray(broken), reason)


def _largest_entropy(query: Queries) -> Array:
    """(n,) M ln n − M ln M: all weights are equal."""
    room = np.log(query.visible)
    total = np.clip(query.total, 0, 1)
    return total * room + _entropy_terms(total) + ROUNDING * (room + 1)


def _entropy_of_bins(query: Queries) -> tuple[Array, Array]:
    """(n,) Σ −m_b ln m_b, and the same plus Σ m_b ln n_b, both with their rounding.

    If masses change by ε in total, the first sum changes by at most ε ln(bins/ε), the second by
    at most ε ln n more.
    """
    masses = query.rows.mass_by_distance
    between = _entropy_terms(masses) @ np.ones(masses.shape[1], np.float32)  # (n,)
    full = np.log(np.append(query.sizes[:-1], 1)).astype(np.float32)  # (bins,)
    inside = masses @ full + query.last_mass * (np.log(query.last_keys) - full[query.last_bin])
    rounding = ROUNDING * np.log(masses.shape[1] / ROUNDING)
    high = between + inside + rounding + ROUNDING * np.log(query.visible)
    return between - rounding, high


def _fano(query: Queries) -> Array:
    """(n,) the largest entropy with a largest weight of p₁, which may be rounded."""
    total = np.clip(query.total + ROUNDING, 0, 1)
    with np.errstate(under="ignore"):
        largest = np.exp(-np.maximum(query.gap, 0) - query.logit_rounding)
    largest = np.clip(largest, total / query.visible, total)
    rest, keys = total - largest, np.maximum(query.visible - 1, 1)
    return _entropy_terms(largest) + _entropy_terms(rest) + rest * np.log(keys) + ROUNDING


def _entropy_terms(weights: Vectors) -> Vectors:
    """−w ln w, 0 for w ≤ 0."""
    return np.asarray(-weights * np.log(np.where(weights > 0, weights, weights.dtype.type(1))))


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
