"""The keys of a head with the attention that they receive, or why it is not known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attention_plasticity.head.key_pool import KeyPool
from attention_plasticity.head.layer import (
    NO_COLUMNS,
    NO_COMMON_TEXT,
    NO_TEXTS,
    SINGLE_EXAMPLE,
    WRONG_SCALE,
)
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.numeric.attended_pairs import KeyAttention
from attention_plasticity.numeric.attention_received import (
    Logits,
    Received,
    TextRows,
    attention_received,
)
from qk_dump.reader import HeadRows


@dataclass(frozen=True)
class AttendedHead:
    """The keys from which attended pairs are drawn, and their weights for one query head."""

    keys: KeyHead
    attention: KeyAttention

    @property
    def from_queries(self) -> bool:
        """Whether the attention comes from the captured queries, not from the capture itself."""
        return self.attention.queries is not None


def attended_keys(
    queries: HeadRows,
    q_head: int,
    keys: KeyHead,
    pool: KeyPool | None,
    window: int | None,
    exponent: int,
    *,
    single_example: bool,
) -> AttendedHead | Unknown:
    """The keys with the attention that they receive from a query head.

    The keys of `pool` have it from the capture. Without a pool, it is computed from the captured
    `queries`, which were divided by two to the `exponent`.
    """
    if single_example:
        return Unknown(SINGLE_EXAMPLE)
    if queries.example_id is None or keys.rows.example_id is None:
        return Unknown(NO_TEXTS)
    if not np.isin(queries.example_id, keys.rows.example_id).any():
        return Unknown(NO_COMMON_TEXT)
    if pool is not None:
        own = pool.keys
        attention = KeyAttention.of(pool.attention(q_head), own.weights.weight, own.rows.position)
        return AttendedHead(own, attention)
    found = _from_queries(queries, keys, window, exponent)
    if isinstance(found, Unknown):
        return found
    position = keys.rows.position
    attention = KeyAttention.of(found.attention, keys.weights.weight, position, found.queries)
    return AttendedHead(keys, attention)


def _from_queries(
    queries: HeadRows, keys: KeyHead, window: int | None, exponent: int
) -> Received | Unknown:
    """The attention of the captured keys from the captured later queries of their text."""
    layer = keys.logits
    if layer.problem is not None:
        return Unknown(layer.problem)
    if queries.attention is None or np.isnan(queries.attention.lse).all():
        return Unknown(NO_COLUMNS)
    assert queries.example_id is not None
    assert keys.rows.example_id is not None
    scale = 1.0 / math.sqrt(queries.width) if layer.scale is None else layer.scale
    with np.errstate(over="ignore", under="ignore"):
        scale = float(np.ldexp(scale, exponent + keys.exponent))
    received = attention_received(
        TextRows(queries.vectors, queries.position, queries.example_id),
        queries.attention.lse,
        TextRows(keys.rows.vectors, keys.rows.position, keys.rows.example_id),
        Logits(scale, layer.softcap, window, layer.chunked),
    )
    return Unknown(WRONG_SCALE) if received is None else received
