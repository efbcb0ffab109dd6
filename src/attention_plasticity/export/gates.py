"""From a value per key head to gates: 1 keeps full attention, 0 sees first and recent tokens."""

from __future__ import annotations

from typing import Literal

import numpy as np

from qk_toolkit.arrays import Array

GroupRule = Literal["max", "mean"]


def by_key_head(table: Array, key_heads: int, rule: GroupRule) -> Array:
    """(layers, key heads) largest or mean value of the query heads of every key head.

    `table` is (layers, query heads).
    """
    grouped = table.reshape(len(table), key_heads, -1)  # (layers, key heads, group)
    return np.asarray(grouped.max(axis=2) if rule == "max" else grouped.mean(axis=2))


def gates(values: Array, threshold: float | None, share: float | None) -> Array:
    """(layers, key heads) gates from 0 to 1, of values of which larger ones need full attention.

    With `threshold`, 1 for values of at least this size, else 0. With `share`, 1 for this share of
    key heads, those with the largest values; of equal values the first in the order of layers and
    heads. With neither, the values themselves, limited to 0 to 1.
    """
    if threshold is not None:
        return np.where(values >= threshold, 1.0, 0.0)
    if share is None:
        return np.clip(values, 0.0, 1.0)
    number = round(share * values.size)
    order = np.argsort(-values, axis=None, kind="stable")  # (layers · key heads,)
    found = np.zeros(values.size)
    found[order[:number]] = 1.0
    return found.reshape(values.shape)
