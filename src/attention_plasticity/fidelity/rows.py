"""The keys of a key head and the queries of its group, as they enter the attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.key_pool import read_pool
from attention_plasticity.head.layer import (
    NO_TEXTS,
    PRE_ROPE,
    LayerRotation,
    after_rope,
    with_rotary_factor,
)
from attention_plasticity.head.rows import KeyHead, common_window, read_queries
from attention_plasticity.head.texts import DumpTexts
from attention_plasticity.head.token_weights import token_weights
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.head.windows import window_of
from attention_plasticity.metrics import FULL_ATTENTION, SLIDING_ATTENTION
from attention_plasticity.numeric.attention_received import Logits
from attention_plasticity.numeric.windows import Window
from attention_plasticity.run.plan import Group
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows
from qk_dump.rotary import RotaryRecord
from qk_toolkit.arrays import Array, Ints, Vectors
from qk_toolkit.errors import HeadError

NO_LSE = (
    "the queries have no attention columns (lse); capture again with capture.attention, which is "
    "on by default"
)


@dataclass(frozen=True)
class Rows:
    """Queries of one head, or keys."""

    vectors: Vectors  # (n, d) after RoPE, with its factor on cos and sin
    position: Array  # (n,)
    text: Ints  # (n,)
    weight: Array  # (n,) tokens that each row stands for


@dataclass(frozen=True)
class GroupRows:
    """A key head and its query heads."""

    keys: Rows
    value_norm: Array | None  # (n,) of the keys; None if it is not known for all of them
    queries: tuple[Rows, ...]
    lse: tuple[Array, ...]  # (m,) of the queries of each head; NaN: not known
    logits: Logits
    window: Window | None
    record: RotaryRecord | None
    layer_type: str


def read_group(dump: Dump, group: Group, texts: DumpTexts, config: RunnerConfig) -> GroupRows:
    """Read the rows of a group. Raises a `ToolkitError` if its attention is not known."""
    name = HeadId(group.layer, group.k_head, "k")
    folder = dump.folders.get(name, name.folder)
    base = KeyHead.read(dump, group.layer, group.k_head, config, texts, with_values=True)
    pool = read_pool(dump, group.layer, group.k_head, base, config)
    keys = base if pool is None else pool.keys
    problem = keys.logits.problem if keys.logits.problem != PRE_ROPE else None
    problem = problem or keys.rotation.problem
    queries, lse, window = [], [], None
    for q_head in group.q_heads:
        head = HeadId(group.layer, q_head, "q")
        rows, exponent = read_queries(dump, head, keys, config)
        window = common_window(rows, keys.rows, head.name)
        if rows.example_id is None:
            problem = problem or NO_TEXTS
        elif rows.attention is None or np.isnan(rows.attention.lse).all():
            problem = problem or NO_LSE
        if exponent or keys.exponent:
            problem = problem or "values of vectors are too large or too small for scores"
        if problem is None:
            assert rows.attention is not None
            weight = token_weights(dump, "q", rows).weight
            queries.append(_rows(rows, weight, keys.rotation))
            lse.append(rows.attention.lse.astype(np.float64))
    visible = window_of(keys, window)
    if isinstance(visible, Unknown):
        problem = problem or visible.reason
    if problem is not None:
        raise HeadError(f"{folder}: {problem}")
    assert not isinstance(visible, Unknown)
    layer = keys.logits
    scale = 1.0 / math.sqrt(keys.rows.width) if layer.scale is None else layer.scale
    chunked = visible is not None and visible.chunked
    return GroupRows(
        _rows(keys.rows, keys.weights.weight, keys.rotation),
        _known_values(keys.rows),
        tuple(queries),
        tuple(lse),
        Logits(scale, layer.softcap, window, chunked),
        visible,
        keys.rotation.record,
        keys.layer_type or (FULL_ATTENTION if window is None else SLIDING_ATTENTION),
    )


def _rows(rows: HeadRows, weight: Array, rotation: LayerRotation) -> Rows:
    vectors = after_rope(rows.vectors, rows.position, rotation)
    if rotation.record is not None and rotation.pre_rope:
        vectors = with_rotary_factor(vectors, rotation.record, rotation.record.scaling)
    assert rows.example_id is not None
    return Rows(vectors, rows.position, rows.example_id, weight)


def _known_values(rows: HeadRows) -> Array | None:
    """(n,) lengths of values; None if some are not known."""
    if rows.value_norm is None or np.isnan(rows.value_norm).any():
        return None
    return rows.value_norm.astype(np.float64)
