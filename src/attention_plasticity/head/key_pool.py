"""The captured keys of a head together with those that were drawn by attention.

The keys of a head with the attention that they receive, or why it is not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.layer import (
    NO_COLUMNS,
    NO_COMMON_TEXT,
    NO_TEXTS,
    SINGLE_EXAMPLE,
    WRONG_SCALE,
)
from attention_plasticity.head.layout import require_buckets, require_pairs
from attention_plasticity.head.rows import KeyHead, in_range
from attention_plasticity.head.token_weights import TokenWeights
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.numeric.attended_pairs import KeyAttention
from attention_plasticity.numeric.attention_received import (
    Logits,
    Received,
    TextRows,
    attention_received,
)
from attention_plasticity.numeric.key_pairs import KeyIndex
from attention_plasticity.numeric.scaling import rescaled
from qk_dump.attended_keys import read_attended
from qk_dump.keep_probabilities import keep_probabilities
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows
from qk_dump.received_columns import ReceivedRows, thinned_inclusion
from qk_toolkit.arrays import Array
from qk_toolkit.errors import DumpError


@dataclass(frozen=True)
class KeyPool:
    """Base and attended keys of a head, for attended pairs. The weight of a row is 1/inclusion."""

    keys: KeyHead
    received: npt.NDArray[np.float32]  # (n, group) attention of every key; NaN where not known

    def attention(self, q_head: int) -> Array:
        """(n,) the attention that keys receive from a query head; 0 where it is not known."""
        column = self.received[:, q_head % self.received.shape[1]]
        return np.nan_to_num(column.astype(np.float64), nan=0.0)

    @property
    def of_group(self) -> Array:
        """(n,) the attention from all query heads of the group; 0 where it is not known."""
        return np.asarray(np.nan_to_num(self.received.astype(np.float64), nan=0.0).sum(axis=1))


def read_pool(
    dump: Dump, layer: int, k_head: int, keys: KeyHead, config: RunnerConfig
) -> KeyPool | None:
    """The pool of a key head whose base keys are `keys`.

    None if the dump has no attended keys of the head, or if it is not known what keys receive.
    """
    head = HeadId(layer, k_head, "k", attended=True)
    base = keys.rows
    if head not in dump.attended or base.received is None or config.single_example:
        return None
    drawn = _read_drawn(dump, head, keys, config)
    if drawn is not None and drawn.received is None:
        return None
    rows = base if drawn is None else _joined(base, drawn)
    share = 1.0 if drawn is None else drawn.subsampled
    inclusion = _inclusion(dump, rows, base.subsampled, share)
    received = rows.received
    assert received is not None
    if inclusion is None or np.isnan(received.received).all():
        return None
    rows, more = in_range(rows, dump.attended[head])
    assert rows.example_id is not None
    index = keys.index
    if drawn is not None:
        index = KeyIndex(rows.position, rows.bucket, rows.example_id)
    if config.pair_sampling == "attended":
        per_bucket = config.most_pairs_per_bucket
        require_buckets(len(index.buckets), dump.attended[head])
        pairs = index.count(config.pair_sampling, per_bucket)
        require_pairs(pairs, per_bucket, len(index.buckets), dump.attended[head])
    joined = replace(
        keys,
        rows=rows,
        index=index,
        exponent=keys.exponent + more,
        known_weights=TokenWeights(inclusion),
    )
    return KeyPool(joined, received.received)


def _read_drawn(dump: Dump, head: HeadId, keys: KeyHead, config: RunnerConfig) -> HeadRows | None:
    """The keys that were drawn by attention, in the units of the base keys; None without rows."""
    folder = dump.attended[head]
    rows = read_attended(
        dump, head.layer, head.head, max_rows=config.max_tokens_per_head, seed=config.seed
    )
    if rows is None:
        return None
    assert rows.example_id is not None
    if rows.width != keys.rows.width:
        raise DumpError(
            f"{folder}: keys have {rows.width} dimensions, those of {head.name} have "
            f"{keys.rows.width}. Use files of one model."
        )
    keys.all_texts.require(rows.example_id, folder)
    if keys.texts is not None:
        rows = rows.of_texts(keys.texts)
    if keys.exponent:
        rows = replace(rows, vectors=rescaled(rows.vectors.astype(np.float64), keys.exponent))
    received, base = rows.received, keys.rows.received
    if received is not None and base is not None and received.group != base.group:
        raise DumpError(
            f"{folder}: `received` has {received.group} values per row, that of {head.name} has "
            f"{base.group}. Use files of one capture."
        )
    return rows


def _joined(base: HeadRows, drawn: HeadRows) -> HeadRows:
    """The rows of both, with what attended pairs need."""

    def both(one: Any, other: Any) -> Any:
        return np.concatenate([one, other])

    assert base.received is not None
    assert drawn.received is not None
    values = None  # known if they were read for both
    if base.value_norm is not None and drawn.value_norm is not None:
        values = both(base.value_norm, drawn.value_norm)
    return replace(
        base,
        bucket=both(base.bucket, drawn.bucket),
        position=both(base.position, drawn.position),
        vectors=both(base.vectors, drawn.vectors),
        example_id=both(base.example_id, drawn.example_id),
        received=ReceivedRows.joined([base.received, drawn.received]),
        attention=None,
        token_id=None,
        value_norm=values,
    )


def _inclusion(dump: Dump, rows: HeadRows, base_share: float, drawn_share: float) -> Array | None:
    """(n,) the probability that each key is in the pool; None if it is not known."""
    assert rows.received is not None
    inclusion = rows.received.inclusion
    if base_share == drawn_share == 1.0:
        return inclusion
    base = keep_probabilities(dump.manifest, "k", rows.position).values
    if base is None:
        return None
    return thinned_inclusion(inclusion, np.minimum(base, inclusion), base_share, drawn_share)


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
