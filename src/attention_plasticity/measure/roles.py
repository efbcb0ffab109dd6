"""What a head does: its scores on texts and on repeated tokens, and example words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from attention_plasticity.estimate.quantity import Quantity, Unknown, ratio_of_means
from attention_plasticity.measure.attention import KnownAttention, distant_mass, far_mass
from attention_plasticity.measure.found import Found
from attention_plasticity.measure.result import Columns
from attention_plasticity.metrics import ROLES
from attention_plasticity.read.rows import Queries
from qk_dump.columns import (
    ARGMAX_POSITION,
    ARGMAX_TOKEN,
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
    TOKEN_ID,
)
from qk_dump.rows import Rows
from qk_toolkit.arrays import Array, Bools, Ints

SINK_WEIGHT = 0.3
"""A query rests on the first token if its weight there is larger."""
_STRONGEST = 8  # queries
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the largest weight
_REPEATED = {
    "repeated_induction": "induction_mass",
    "repeated_duplicate": "duplicate_mass",
    "repeated_previous": "previous_mass",
}
"""Scores on random tokens that come twice. Only tokens of the second half have an earlier key with
the same token. They have exactly one."""
NOT_KNOWN = "the attention columns do not have it, or no query sees such a key"


def role_row(known: KnownAttention | None, on_repeated: Queries | None, distant_from: int) -> Found:
    """The row of the table of roles, without labels; empty if attention is not known.

    `on_repeated` are the queries of the head in the dump of repeated tokens, if there is one.
    """
    found = Found("roles")
    if known is None:
        return found
    scores = _scores(known, distant_from)
    repeated = _on_repeated_tokens(on_repeated)
    groups = math.nan if known.group is None else len(np.unique(known.group))
    found.add({"n_queries": len(known.rows), "n_groups": groups}, NOT_KNOWN)
    for name in ROLES.with_error:
        one = scores.get(name) or repeated.get(name) or Unknown(NOT_KNOWN)
        found.add_quantity(name, one, NOT_KNOWN, known.queries.no_errors)
    found.quantities = [one for one in found.quantities if one[0] not in _REPEATED]
    of_repeated = max((one.groups for one in repeated.values()), default=0)
    found.add({"repeated_groups": of_repeated or math.nan}, NOT_KNOWN)
    return found


def _scores(known: KnownAttention, distant_from: int) -> dict[str, Quantity]:
    """The scores of a head by column; those that the columns do not give are left out."""
    names, values, among = zip(*_columns(known, distant_from), strict=True)
    table, kept = np.column_stack(values), np.column_stack(among)  # (n, scores)
    usable = kept.any(axis=0) & ~(np.isnan(table) & kept).any(axis=0)
    table = np.where(kept, table, 0.0)
    means = ratio_of_means(table, known.weight[:, None] * kept, known.group)
    return {name: means.at(place) for place, name in enumerate(names) if usable[place]}


def _columns(known: KnownAttention, distant_from: int) -> Iterator[tuple[str, Array, Bools]]:
    """Every score: its name, its value for every query (n,), and the queries it is a mean over."""
    rows, position = known.attention, known.position
    every = np.ones(len(position), np.bool_)
    seen = _seen_keys(known)  # (n,) NaN if it is not known
    masses = rows[MASSES].astype(np.float64)  # (n, bins)
    yield "self_mass", masses[:, 0], every
    if masses.shape[1] > 4 or not masses[:, -1].any():  # the last bin has all larger distances
        padded = np.pad(masses, ((0, 0), (0, 4)))
        yield "previous_mass", padded[:, 1], seen > 1
        yield "local_mass", padded[:, 2:4].sum(axis=1), seen > 2
    sinks = rows[SINK_MASS].astype(np.float64)
    distant = distant_mass(rows[MASSES], distant_from)
    yield "far_mass", far_mass(distant, sinks, position, distant_from), every
    if FIRST_MASS in rows:
        first = rows[FIRST_MASS].astype(np.float64)  # (n,)
        sees_first = (position > 0) & (seen > position)
        yield "first_mass", first, sees_first
        yield "sink_rate", (first > SINK_WEIGHT).astype(np.float64), sees_first
    yield "top_weight", top_weights(rows), every
    yield "effective_keys", np.exp(rows[ENTROPY].astype(np.float64)), every
    for name, of_mass, of_keys in (
        ("duplicate", DUPLICATE_MASS, DUPLICATE_KEYS),
        ("induction", INDUCTION_MASS, INDUCTION_KEYS),
    ):
        if of_mass in rows:
            mass, keys = rows[of_mass], rows[of_keys]
            chance = keys / seen
            yield f"{name}_mass", mass.astype(np.float64), keys > 0
            yield f"{name}_chance", chance, keys > 0
            yield f"{name}_excess", mass.astype(np.float64) - chance, keys > 0


def _seen_keys(known: KnownAttention) -> Array:
    """(n,) numbers of keys that queries see; NaN if the size of chunks is not known."""
    visible = known.queries.visible
    if isinstance(visible, Unknown):
        return np.full(len(known.position), np.nan)
    return visible.number(known.position)


def top_weights(rows: Rows) -> Array:
    """(n,) the largest attention weight of every query."""
    logits = rows[MAX_LOGIT].astype(np.float64) - rows[LSE].astype(np.float64)  # (n,)
    return np.minimum(np.exp(logits), 1.0)  # both are rounded


def _on_repeated_tokens(queries: Queries | None) -> dict[str, Quantity]:
    """The standard scores of a head, from the dump of repeated tokens; empty without one."""
    known = None if queries is None else KnownAttention.of(queries)
    if known is None:
        return {}
    scores = _scores(known, 1)
    return {name: scores[other] for name, other in _REPEATED.items() if other in scores}


def word_columns(known: KnownAttention | None, words: Mapping[int, str] | None) -> Columns:
    """Rows of the table of words; empty if tokens or their texts are not known."""
    if known is None or not words:
        return {}
    rows, attention = known.queries.rows, known.attention
    if TOKEN_ID not in rows or rows.example_id is None or ARGMAX_TOKEN not in attention:
        return {}
    tokens = rows[TOKEN_ID][known.rows]  # (n,)
    keys = attention[ARGMAX_TOKEN]  # (n,)
    usable = np.flatnonzero((tokens >= 0) & (keys >= 0))
    top = top_weights(attention)  # (n,)
    places = attention[ARGMAX_POSITION]  # (n,)
    texts = rows.example_id[known.rows]  # (n,)
    pairs = np.stack([tokens, keys], axis=1)[usable]  # (m, 2)
    key_places = np.stack([texts, places], axis=1)[usable]  # (m, 2)
    chosen = [
        ("strongest", usable[strongest_queries(top[usable], pairs, key_places)]),
        ("typical", usable[typical_queries(top[usable], known.weight[usable])]),
    ]
    members = np.concatenate([members for _, members in chosen])
    position = known.position[members].astype(np.int64)
    return {
        "kind": [kind for kind, members in chosen for _ in members],
        "example_id": texts[members].tolist(),
        "q_position": position.tolist(),
        "k_position": places[members].tolist(),
        "distance": (position - places[members]).tolist(),
        "weight": top[members].tolist(),
        "query_token": [words.get(token, "") for token in tokens[members].tolist()],
        "key_token": [words.get(token, "") for token in keys[members].tolist()],
    }


def strongest_queries(top: Array, pairs: Ints, keys: Ints) -> Ints:
    """Numbers of the queries with the largest weights `top` (n,), the largest first.

    A pair of tokens in `pairs` (n, 2) is taken once, and so is a key: a text and a position in
    `keys` (n, 2). Queries whose key is at position 0 are left out: it is a sink of most heads,
    whatever its token is.
    """
    order = np.argsort(-top, kind="stable")
    seen_keys: set[tuple[int, int]] = set()
    seen_pairs: set[tuple[int, int]] = set()
    found: list[int] = []
    for number in order[keys[order, 1] > 0].tolist():
        key, pair = tuple(keys[number].tolist()), tuple(pairs[number].tolist())
        if key in seen_keys:
            continue
        seen_keys.add(key)
        if pair in seen_pairs:
            continue
        seen_pairs.add(pair)
        found.append(number)
        if len(found) == _STRONGEST:
            break
    return np.array(found, np.int64)


def typical_queries(top: Array, weight: Array) -> Ints:
    """Numbers of the queries at quantiles of `top` (n,), over tokens, from small to large.

    `weight` (n,) are the tokens that a query stands for.
    """
    if len(top) == 0:
        return np.zeros(0, np.int64)
    order = np.argsort(top, kind="stable")
    below = np.cumsum(weight[order])
    places = np.searchsorted(below, np.array(_QUANTILES) * below[-1])
    chosen = order[np.minimum(places, len(order) - 1)].tolist()
    return np.array(list(dict.fromkeys(chosen)), np.int64)
