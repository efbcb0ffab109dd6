"""Checks that the files of a head belong together, for mistakes such as a file that was mixed up.

`received` has one value per query head of the key head, and its sum over the keys of a text is 1.
Keys drawn by attention are not in the base file. A position is below the length of its text. A
captured pair of a query and a key has the logit that the attention columns of the query give.
"""

from __future__ import annotations

import math

import numpy as np

from attention_plasticity.estimate.blocks import row_blocks
from attention_plasticity.read.layer import PRE_ROPE
from attention_plasticity.read.layout import HeadLayout
from attention_plasticity.read.rows import Keys, Queries
from attention_plasticity.read.unknown import Unknown
from qk_dump.columns import ARGMAX_POSITION, EXAMPLE, LSE, MAX_LOGIT, POSITION
from qk_dump.reader import HeadRows
from qk_dump.remote import DumpPath
from qk_toolkit.arrays import Array, Ints, Vectors
from qk_toolkit.errors import DumpError

_LEAST_TOTAL, _MOST_TOTAL = 0.5, 2.0  # of Σ received/inclusion, a mean over texts
_FEWEST_TEXTS = 4  # with a standard error
_ERRORS = 4.0  # standard errors by which the mean must be outside
_MOST_QUERIES = 256  # of a head, at even steps of its file
_BLOCK = 1 << 21  # pairs of a query and a key at a time
_ROUNDING, _RELATIVE_ROUNDING = 0.1, 2.0**-9  # of a logit; vectors may be float16


def require_group(received: Vectors, layout: HeadLayout, folder: DumpPath) -> None:
    """Raise a `DumpError` unless `received` (n, g) has a value per query head of the key head."""
    group = layout.num_q_heads // layout.num_k_heads
    if received.shape[1] != group:
        raise DumpError(
            f"{folder}: `received` has {received.shape[1]} values per key, one for each query head "
            f"of the key head, but {layout.num_q_heads} query heads and {layout.num_k_heads} key "
            f"heads are {group} ({layout.source}). Set num_q_heads and num_k_heads of the model."
        )


def require_new_keys(base: HeadRows, drawn: HeadRows, folder: DumpPath) -> None:
    """Raise a `DumpError` if keys drawn by attention are also in the base file."""
    text, position = (
        np.concatenate([base[name], drawn[name]]) for name in (EXAMPLE, POSITION)
    )  # (n + m,)
    code = np.unique(text, return_inverse=True)[1]
    place = code * (1.0 + position.max(initial=0.0)) + position
    common = len(base) + np.flatnonzero(np.isin(place[len(base) :], place[: len(base)]))
    if len(common):
        row = common[np.argmin(place[common])]
        raise DumpError(
            f"{folder}: {len(common):,} of its {len(drawn):,} keys are also in the base file, "
            f"such as position {position[row]:.0f} of text {text[row]}. It must have further keys; "
            "copy, capture or download it again."
        )


def require_totals(
    received: Vectors, weight: Array, text: Ints, folder: DumpPath, *, sinks: bool
) -> None:
    """Raise a `DumpError` if Σ received/inclusion over the keys of a text is far from 1.

    `received` is (n, g), `weight` (n,) is 1/inclusion. Learned sinks (`sinks`) can take most of the
    attention.
    """
    known = ~np.isnan(received).any(axis=1)  # (n,)
    texts, code = np.unique(text[known], return_inverse=True)
    if len(texts) < _FEWEST_TEXTS:
        return
    for column, values in enumerate(received[known].T):
        totals = np.bincount(code, values * weight[known])  # (texts,)
        mean, error = totals.mean(), totals.std(ddof=1) / math.sqrt(len(totals))
        too_small = mean + _ERRORS * error < _LEAST_TOTAL and not sinks
        if too_small or mean - _ERRORS * error > _MOST_TOTAL:
            raise DumpError(
                f"{folder}: `received` or `inclusion` are wrong: the sum of received/inclusion "
                f"over the keys of a text is {mean:.3g} for value {column} (mean of "
                f"{len(texts):,} texts), expected about 1. Copy, capture or download the head "
                "again."
            )


def require_logits(queries: Queries, keys: Keys, folder: DumpPath) -> None:
    """Raise a `DumpError` if logits of captured pairs contradict the attention columns.

    No logit is larger than `max_logit`, and the key at `argmax_position` has it. Nothing is checked
    if the logits are not known, or without a recorded scale. Pass the keys drawn by attention, too.
    """
    layer, visible = queries.layer, queries.visible
    if layer.scale is None or layer.logit_problem not in (None, PRE_ROPE):
        return
    if queries.in_attention_problem is not None or isinstance(visible, Unknown):
        return
    if queries.text is None or keys.group is None or LSE not in queries.rows:
        return  # texts are not known, or single_example is set
    known = np.flatnonzero(~np.isnan(queries.rows[LSE]))
    if not len(known):
        return
    known = known[:: -(-len(known) // _MOST_QUERIES)]
    known = known[np.argsort(queries.text[known], kind="stable")]
    order = np.argsort(keys.text, kind="stable")
    texts, first = np.unique(queries.text[known], return_index=True)
    ends = np.append(first[1:], len(known))
    low, high = (np.searchsorted(keys.text[order], texts, side) for side in ("left", "right"))
    for begin, end, start, stop in zip(first, ends, low, high, strict=True):
        own = order[start:stop]  # keys of the text
        for block in row_blocks(end - begin, len(own), _BLOCK):
            _require_logits(queries, known[begin:end][block], keys, own, folder)


def _require_logits(queries: Queries, rows: Ints, keys: Keys, own: Ints, folder: DumpPath) -> None:
    """Check the pairs of some queries (b,) and keys (n,) of one text."""
    assert not isinstance(queries.visible, Unknown)
    logits, rounding = _logits(queries, rows, keys, own)  # (b, n)
    position, place = queries.position[rows, None], keys.position[own]  # (b, 1), (n,)
    largest = queries.rows[MAX_LOGIT][rows, None]  # (b, 1)
    wrong = logits > largest + rounding
    if ARGMAX_POSITION in queries.rows:
        is_largest = place == queries.rows[ARGMAX_POSITION][rows, None]  # (b, n)
        wrong |= is_largest & (logits < largest - rounding)
    if not wrong.any():
        return
    wrong &= (place <= position) & (position < queries.visible.end(place))
    if wrong.any():
        query, key = np.unravel_index(np.argmax(wrong), wrong.shape)
        raise DumpError(
            f"{folder}: text {keys.text[own[key]]}: the query at position {position[query, 0]:.0f} "
            f"and the key at position {place[key]:.0f} have the logit {logits[query, key]:.4g}, "
            f"which contradicts max_logit {largest[query, 0]:.4g}. Queries, keys, example_id, and "
            "scale and rotary record in dump.json are not of one capture; copy, capture or "
            "download them again."
        )


def _logits(queries: Queries, rows: Ints, keys: Keys, own: Ints) -> tuple[Vectors, Vectors]:
    """(b, n) logits of some queries and keys, and the rounding of each."""
    q, k = queries.after[rows], keys.after[own]  # (b, d), (n, d)
    scale, softcap = queries.layer.scale, queries.layer.softcap
    assert scale is not None
    unit = np.ldexp(np.float32(scale), queries.exponent + keys.exponent)
    logits = unit * (q @ k.T)  # (b, n)
    lengths = [np.sqrt(np.einsum("nd,nd->n", X, X)) for X in (q, k)]
    sizes = np.multiply.outer(abs(unit) * lengths[0], lengths[1])  # (b, n)
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    return logits, _ROUNDING + _RELATIVE_ROUNDING * sizes
