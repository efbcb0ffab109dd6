"""The keys of a head with the attention that they receive, or why it is not known."""

from __future__ import annotations

import math

import numpy as np

from attention_plasticity.head.layer import (
    NO_COLUMNS,
    NO_COMMON_TEXT,
    NO_TEXTS,
    SINGLE_EXAMPLE,
    WRONG_SCALE,
)
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.numeric.attended_pairs import AttendedKeys
from attention_plasticity.numeric.attention_received import Logits, TextRows, attention_received
from qk_dump.reader import HeadRows


def attended_keys(
    queries: HeadRows, keys: KeyHead, window: int | None, exponent: int, *, single_example: bool
) -> AttendedKeys | str:
    """The attention of the keys from `queries`, which were divided by two to the `exponent`.

    A reason in words if it is not known.
    """
    layer = keys.logits
    if layer.problem is not None:
        return layer.problem
    if queries.attention is None or np.isnan(queries.attention.lse).all():
        return NO_COLUMNS
    if single_example:
        return SINGLE_EXAMPLE
    if queries.example_id is None or keys.rows.example_id is None:
        return NO_TEXTS
    if not np.isin(queries.example_id, keys.rows.example_id).any():
        return NO_COMMON_TEXT
    scale = 1.0 / math.sqrt(queries.width) if layer.scale is None else layer.scale
    with np.errstate(over="ignore", under="ignore"):
        scale = float(np.ldexp(scale, exponent + keys.exponent))
    received = attention_received(
        TextRows(queries.vectors, queries.position, queries.example_id),
        queries.attention.lse,
        TextRows(keys.rows.vectors, keys.rows.position, keys.rows.example_id),
        Logits(scale, layer.softcap, window, layer.chunked),
    )
    return WRONG_SCALE if received is None else AttendedKeys(keys.index, received)
