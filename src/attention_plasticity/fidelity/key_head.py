"""The fidelity of all scores for one key head: fit to other texts, score, compare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_plasticity.estimate.quantity import Quantity, ratio_of_means, unknown
from attention_plasticity.fidelity.kept_attention import (
    SHARES,
    QueriesOfText,
    ReceivedByKeys,
    kept_shares,
    rank_correlation,
    received_by_keys,
)
from attention_plasticity.fidelity.key_scores import (
    LOG_SCORES,
    SCORES,
    KeysOfText,
    ScoredQueries,
    score_keys,
    times_value,
)
from attention_plasticity.fidelity.query_fit import QueryFit, QuerySums, query_sums
from attention_plasticity.fidelity.rows import GroupRows, TextRows
from attention_plasticity.read.bins import Bins
from attention_plasticity.read.layer import WRONG_SCALE
from attention_plasticity.read.texts import TextGroups
from qk_toolkit.arrays import Array, Ints
from qk_toolkit.errors import HeadError

BEST_STATIC, BEST_PER_QUERY = "best_static", "best_per_query"
NUMBERS = ("spearman", *(f"kept_{round(100 * share)}" for share in SHARES))
"""What is measured of every score."""
ROWS = (
    *((score, times) for score in SCORES for times in range(1 + (score in LOG_SCORES))),
    (BEST_STATIC, 0),
    (BEST_PER_QUERY, 0),
)
"""Name of the score, and 1 if it is multiplied by the length of the value; in table order."""
FEW_GROUPS = (
    "its queries are from fewer than two groups of texts; keys are scored with a fit to other "
    "texts, so capture more texts"
)
NO_KEYS = (
    "no key from position 4 on has a later query at the distance `near` or more whose attention is "
    "known; lower near or first_query, or capture more tokens"
)


@dataclass(frozen=True)
class Choice:
    """Which pairs of a query and a key count."""

    bins: Bins
    near: int
    first_query: int


@dataclass(frozen=True)
class _Text:
    """A text whose keys receive attention."""

    number: int  # its id
    group: int
    rows: Ints  # of its keys
    length: int
    queries: int
    received: ReceivedByKeys


def key_head_fidelity(
    group: GroupRows, groups: TextGroups, lengths: dict[int, int], choice: Choice
) -> dict[str, Any]:
    """Numbers of every score as plain values: value, influences and groups of each.

    `lengths` has the tokens of texts; the last captured position is used for others.
    """
    texts = list(_texts(group, groups, lengths, choice))
    if not texts:
        raise HeadError(NO_KEYS)
    known = np.unique(np.concatenate([groups.of(rows.text) for rows in group.queries]))
    if len(known) < 2:
        raise HeadError(FEW_GROUPS)
    values: dict[tuple[str, int], Array] = {
        name: np.full((len(texts), len(NUMBERS)), np.nan) for name in ROWS
    }
    norm = np.linalg.norm(group.keys.vectors.astype(np.float64), axis=1)  # (n,)
    signs = np.array([_numbers(one, norm[one.rows], group)[0] for one in texts])  # (texts,)
    of_text = np.array([one.group for one in texts])  # (texts,)
    for number, fits in _fits(group, groups, choice, of_text):
        others = signs[(of_text != number) & ~np.isnan(signs)]
        sign = 1.0 if others.sum() > 0 else -1.0
        for place in np.flatnonzero(of_text == number).tolist():
            for name, score in _scores(group, texts[place], fits, choice, sign).items():
                values[name][place] = _numbers(texts[place], score, group)
    for place, one in enumerate(texts):
        values[BEST_STATIC, 0][place] = _numbers(one, one.received.attention, group)
        values[BEST_PER_QUERY, 0][place, 1:] = one.received.best_per_query
    rows = [
        {"score": score, "value_norm": times, **_means(values[score, times], of_text)}
        for score, times in ROWS
        if not times or group.value_norm is not None
    ]
    return {
        "layer_type": group.layer_type,
        "n_q_heads": len(group.queries),
        "n_keys": sum(int(one.received.candidates.sum()) for one in texts),
        "n_queries": sum(one.queries for one in texts),
        "n_texts": len(texts),
        "n_groups": len(np.unique(of_text)),
        "rows": rows,
    }


def _texts(
    group: GroupRows, groups: TextGroups, lengths: dict[int, int], choice: Choice
) -> Iterator[_Text]:
    """The texts with attention to count, by id."""
    keys = group.keys
    for text in np.unique(keys.text).tolist():
        rows = np.flatnonzero(keys.text == text)
        heads, last = [], keys.position[rows].max()
        for queries, lse in zip(group.queries, group.lse, strict=True):
            own = np.flatnonzero(queries.text == text)
            last = max(last, queries.position[own].max(initial=0.0))
            used = own[(queries.position[own] >= choice.first_query) & ~np.isnan(lse[own])]
            heads.append(
                QueriesOfText(
                    queries.vectors[used], queries.position[used], queries.weight[used], lse[used]
                )
            )
        received = received_by_keys(
            heads,
            keys.vectors[rows],
            keys.position[rows],
            keys.weight[rows],
            group.logits,
            choice.near,
        )
        if received is None:
            raise HeadError(WRONG_SCALE)
        if received.attention.any():
            length = max(lengths.get(text, 0), int(last) + 1)
            number = int(groups.of(np.array([text]))[0])
            counted = sum(len(head.position) for head in heads)
            yield _Text(text, number, rows, length, counted, received)


def _fits(
    group: GroupRows, groups: TextGroups, choice: Choice, wanted: Ints
) -> Iterator[tuple[int, list[QueryFit]]]:
    """For every wanted group of texts: the fits of all heads to the queries of the other groups."""
    total = [
        _sums(rows, np.ones(len(rows.text), bool), group, choice.bins) for rows in group.queries
    ]
    members = [groups.of(rows.text) for rows in group.queries]
    for number in np.unique(wanted).tolist():
        fits = []
        for rows, member, whole in zip(group.queries, members, total, strict=True):
            left = whole - _sums(rows, member == number, group, choice.bins)
            try:
                fits.append(left.fit())
            except ValueError as error:
                raise HeadError(f"without the texts of one group there are {error}") from error
        yield number, fits


def _sums(rows: TextRows, kept: Any, group: GroupRows, bins: Bins) -> QuerySums:
    own = np.flatnonzero(kept)
    return query_sums(rows.vectors[own], rows.position[own], rows.weight[own], bins, group.record)


def _scores(
    group: GroupRows, text: _Text, fits: list[QueryFit], choice: Choice, sign: float
) -> dict[tuple[str, int], Array]:
    """All scores of the keys of a text, also times the lengths of values."""
    keys, rows = group.keys, text.rows
    own = KeysOfText(keys.vectors[rows], keys.position[rows], keys.weight[rows])
    queries = ScoredQueries(text.length, choice.first_query, choice.near, group.logits.visible)
    found = score_keys(fits, own, queries, scale=group.logits.scale, key_sign=sign)
    scores = {(name, 0): score for name, score in found.items()}
    if group.value_norm is not None:
        for name in LOG_SCORES:
            scores[name, 1] = times_value(found[name], group.value_norm[rows])
    return scores


def _numbers(text: _Text, score: Array, group: GroupRows) -> Array:
    """(numbers,) of a score (n,) of the keys of a text."""
    own, received = text.received.candidates, text.received
    weight = group.keys.weight[text.rows][own]
    spearman = rank_correlation(score[own], received.per_query()[own], weight)
    kept = kept_shares(score[own], received.attention[own], weight)
    return np.asarray(np.r_[spearman, kept], np.float64)


def _means(values: Array, group: Ints) -> dict[str, list[Any]]:
    """Means of `values` (texts, numbers), by name: value, influences and number of groups."""
    found = [_mean(column, group) for column in values.T]
    return {
        name: [one.value, one.influences.tolist(), one.groups]
        for name, one in zip(NUMBERS, found, strict=True)
    }


def _mean(values: Array, group: Ints) -> Quantity:
    """Mean over the texts with a value."""
    known = ~np.isnan(values)
    if not known.any():
        return unknown()
    return ratio_of_means(values[known], np.ones(int(known.sum())), group[known])
