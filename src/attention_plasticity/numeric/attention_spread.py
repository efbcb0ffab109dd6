"""How unequally the keys of a text receive attention.

Arrays in, arrays out; numpy only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qk_toolkit.arrays import Array, Ints


class Spread(NamedTuple):
    """Values of every text."""

    text: Ints  # (texts,)
    tokens: Array  # (texts,)
    gini: Array  # (texts,) 0: all keys receive the same; near 1: one key receives all
    half: Array  # (texts,) smallest share of the keys that together receive half of the attention


def attention_spread(attention: Array, tokens: Array, text: Ints) -> Spread:
    """From the attention that keys (n,) receive, and the numbers of tokens that they stand for.

    Texts whose keys receive no attention are left out.
    """
    found = []
    order = np.lexsort((-attention, text))  # the largest first
    for rows in np.split(order, np.flatnonzero(np.diff(text[order])) + 1):
        weight, own = tokens[rows], attention[rows] * tokens[rows]  # (m,)
        total, all_tokens = own.sum(), weight.sum()
        if not total > 0:
            continue
        sums = np.cumsum(own)
        lower = total - sums + 0.5 * own  # of keys that receive less, and half of its own
        gini = 1.0 - 2.0 * float(weight @ lower) / (all_tokens * total)
        last = int(np.searchsorted(sums, 0.5 * total))
        part = (0.5 * total - (sums[last] - own[last])) / own[last]  # of the last key
        half = (weight[:last].sum() + part * weight[last]) / all_tokens
        found.append((text[rows[0]], all_tokens, gini, half))
    columns = np.array(found, np.float64).reshape(-1, 4).T
    return Spread(columns[0].astype(np.int64), *columns[1:])
