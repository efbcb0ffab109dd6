"""The keys of a key head and the queries of its group, as they enter the attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.fidelity.logits import Logits
from attention_plasticity.read.layer import NO_TEXTS, PRE_ROPE
from attention_plasticity.read.pool import read_pool
from attention_plasticity.read.rows import Keys, Queries, read_keys, read_queries
from attention_plasticity.read.texts import DumpTexts
from attention_plasticity.read.unknown import Unknown
from attention_plasticity.run.plan import Group
from qk_dump.layout import Dump, HeadId
from qk_dump.rotary import RotaryRecord
from qk_toolkit.arrays import Array, Ints, Vectors
from qk_toolkit.errors import HeadError

NO_LSE = (
    "the queries have no attention columns (lse); capture again with capture.attention, which is "
    "on by default"
)


@dataclass(frozen=True)
class TextRows:
    """Queries of one head, or keys, with the text of each."""

    vectors: Vectors  # (n, d) after RoPE, with its factor on cos and sin
    position: Array  # (n,)
    text: Ints  # (n,)
    weight: Array  # (n,) tokens that each row stands for


@dataclass(frozen=True)
class GroupRows:
    """A key head and its query heads."""

    keys: TextRows
    value_norm: Array | None  # (n,) of the keys; None if it is not known for all of them
    queries: tuple[TextRows, ...]
    lse: tuple[Array, ...]  # (m,) of the queries of each head; NaN: not known
    logits: Logits
    record: RotaryRecord | None
    layer_type: str


def read_group(dump: Dump, group: Group, texts: DumpTexts, config: RunnerConfig) -> GroupRows:
    """Read the rows of a group. Raises a `ToolkitError` if its attention is not known."""
    base = read_keys(dump, group.layer, group.k_head, config, texts, with_values=True)
    pool = read_pool(dump, group.layer, group.k_head, base, config)
    keys = base if pool is None else pool.keys
    heads = [read_queries(dump, group.layer, q_head, keys, config) for q_head in group.q_heads]
    problem = _problem(keys, heads)
    if problem is not None:
        raise HeadError(f"{dump.folders[HeadId(group.layer, group.k_head, 'k')]}: {problem}")
    first, logits = heads[0], keys.layer.logits
    assert isinstance(first.visible, Visible)
    scale = 1.0 / math.sqrt(keys.rows.width) if logits.scale is None else logits.scale
    return GroupRows(
        _rows(keys),
        _known_values(keys),
        tuple(_rows(queries) for queries in heads),
        tuple(_lse(queries) for queries in heads),
        Logits(scale, logits.softcap, first.visible),
        keys.layer.rotation.record,
        keys.layer.type_name(first.window),
    )


def _problem(keys: Keys, heads: Sequence[Queries]) -> str | None:
    """Why the attention of the group is not known; None if it is."""
    layer, visible = keys.layer, heads[0].visible
    if layer.logits.problem is not None and layer.logits.problem != PRE_ROPE:
        return layer.logits.problem
    if layer.rotation.problem is not None:
        return layer.rotation.problem
    if any(queries.text is None for queries in heads):
        return NO_TEXTS
    if any(np.isnan(_lse(queries)).all() for queries in heads):
        return NO_LSE
    return visible.reason if isinstance(visible, Unknown) else None


def _rows(rows: Keys | Queries) -> TextRows:
    """The rows with vectors in their own scale."""
    assert rows.text is not None
    return TextRows(np.ldexp(rows.after, rows.exponent), rows.position, rows.text, rows.weight)


def _lse(queries: Queries) -> Array:
    """(n,) log-sum-exp of the logits of each query; NaN where it is not known."""
    attention = queries.rows.attention
    if attention is None:
        return np.full(len(queries), np.nan)
    return attention.lse.astype(np.float64)


def _known_values(keys: Keys) -> Array | None:
    """(n,) lengths of values; None if some are not known."""
    values = keys.rows.value_norm
    if values is None or np.isnan(values).any():
        return None
    return values.astype(np.float64)
