"""The table of fidelity: how well scores rank the keys of one key head without a query.

The scores are fitted to queries of other texts. They are compared with the attention that keys
receive from later queries of their own text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.quantity import ratio_of_means
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.kept_attention import (
    SHARES,
    Received,
    kept_shares,
    rank_correlation,
    received_by_keys,
)
from attention_plasticity.measure.key_scores import LOG_SCORES, SCORES, KeyScores
from attention_plasticity.measure.later_queries import LaterQueries, TextRows
from attention_plasticity.measure.plasticity import NO_BINS
from attention_plasticity.measure.query_fit import QueryFit, query_sums
from attention_plasticity.metrics import FIDELITY
from attention_plasticity.read.guards import require_logits
from attention_plasticity.read.layer import NO_TEXTS, PRE_ROPE, SINGLE_EXAMPLE, WRONG_SCALE
from attention_plasticity.read.pool import read_pool
from attention_plasticity.read.rows import Keys, Queries, Rows, read_keys, read_queries
from attention_plasticity.read.run_texts import first_query
from attention_plasticity.read.texts import DumpTexts
from attention_plasticity.read.unknown import Unknown
from qk_dump.columns import LSE, VALUE_NORM
from qk_dump.examples import read_examples
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.limits import MOST_POSITIONS
from qk_toolkit.arrays import Array, Ints
from qk_toolkit.errors import DumpError, HeadError

BEST_STATIC, BEST_PER_QUERY = "best_static", "best_per_query"
NUMBERS = ("spearman", *(f"kept_{round(100 * share)}" for share in SHARES))
"""What is measured of every score."""
ROWS = (
    *((score, times) for score in SCORES for times in range(1 + (score in LOG_SCORES))),
    (BEST_STATIC, 0),
    (BEST_PER_QUERY, 0),
)
"""Name of the score, and 1 if it is multiplied by the length of the value; in table order."""
NO_LSE = (
    "the queries have no attention columns (lse); capture again with capture.attention, which is "
    "on by default"
)
ONE_GROUP = (
    "its queries are from fewer than two groups of texts; keys are scored with a fit to other "
    "texts, so capture more texts"
)
NO_FIT = (
    "without the texts of one group there are fewer than two queries at position 4 or later; "
    "capture more tokens"
)
NO_KEYS = (
    "no key from position 4 on has a later query at the distance `near` or more whose attention is "
    "known; lower near or first_query, or capture more tokens"
)

Fidelity = dict[str, Any]
"""Plain values, for JSON: facts of a key head, and value, influences and groups of each number."""


def fidelity_of(
    dump: Dump,
    layer: int,
    k_head: int,
    q_heads: Sequence[int],
    config: RunnerConfig,
    texts: DumpTexts,
) -> Fidelity:
    """The fidelity of all scores for a key head. Raises a `ToolkitError` if it has none."""
    base = read_keys(dump, layer, k_head, config, texts, with_values=True)
    pool = read_pool(dump, layer, k_head, base, config)
    keys = base if pool is None else pool.keys
    heads = [read_queries(dump, layer, q_head, keys, config) for q_head in q_heads]
    for q_head, queries in zip(q_heads, heads, strict=True):
        require_logits(queries, keys, dump.folders[HeadId(layer, q_head, "q")])
    problem = _problem(keys, heads)
    if problem is not None:
        raise HeadError(f"{dump.folders[HeadId(layer, k_head, 'k')]}: {problem}")
    return fidelity_of_rows(keys, heads, _lengths(dump), config)


def fidelity_rows(layer: int, k_head: int, content: Fidelity) -> list[list[Any]]:
    """Rows of the table of fidelity, in the order of its columns."""
    found = []
    for row in content["rows"]:
        values = {**content, **row, "layer": layer, "k_head": k_head}
        for name in NUMBERS:
            values[name], influences, _ = row[name]
            values[f"{name}_se"] = math.sqrt(math.fsum(one**2 for one in influences))
        found.append([values[name] for name in FIDELITY.names])
    return found


def _problem(keys: Keys, heads: Sequence[Queries]) -> str | None:
    """Why the attention of the heads is not known; None if it is."""
    layer, visible = keys.layer, heads[0].visible
    if keys.group is None:
        return SINGLE_EXAMPLE
    if keys.texts.bins is None:
        return NO_BINS
    if layer.logits.problem is not None and layer.logits.problem != PRE_ROPE:
        return layer.logits.problem
    if layer.rotation.problem is not None:
        return layer.rotation.problem
    if any(queries.text is None for queries in heads):
        return NO_TEXTS
    if any(np.isnan(_lse(queries)).all() for queries in heads):
        return NO_LSE
    return visible.reason if isinstance(visible, Unknown) else None


def _lengths(dump: Dump) -> dict[int, int]:
    """Tokens by the id of a text, as far as `examples.parquet` has them."""
    try:
        table = read_examples(dump.path, dump.capture_id)
    except DumpError:
        return {}
    names = ("example_id", "num_tokens")
    if table is None or any(table.schema.names.count(name) != 1 for name in names):
        return {}
    pairs = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return {
        text: tokens
        for text, tokens in pairs
        if isinstance(text, int) and isinstance(tokens, int) and 0 < tokens <= MOST_POSITIONS
    }


@dataclass(frozen=True)
class _Text:
    """A text whose keys receive attention."""

    group: int
    keys: TextRows
    value_norm: Array | None  # (n,) lengths of values; None if some of the key head are not known
    later: LaterQueries
    queries: int  # captured, of all heads
    received: Received

    def numbers(self, score: Array) -> Array:
        """(numbers,) of a score (n,), over the keys that a query sees."""
        own = np.flatnonzero(self.received.queries)
        attention, weight = self.received.attention[own], self.keys.weight[own]
        per_query = attention / self.received.queries[own]
        spearman = rank_correlation(score[own], per_query, weight)
        return np.array([spearman, *kept_shares(score[own], attention, weight)])


def fidelity_of_rows(
    keys: Keys, heads: Sequence[Queries], lengths: Mapping[int, int], config: RunnerConfig
) -> Fidelity:
    """The fidelity of all scores of `keys`, for the queries of `heads`.

    `lengths` has the tokens of texts; the last captured position is used for others.
    """
    texts = list(_texts(keys, heads, lengths, config))
    if not texts:
        raise HeadError(NO_KEYS)
    if len(np.unique(np.concatenate([_group(queries) for queries in heads]))) < 2:
        raise HeadError(ONE_GROUP)
    group = np.array([text.group for text in texts])  # (texts,)
    norms = [np.linalg.norm(text.keys.vectors, axis=1) for text in texts]  # (n,) each
    signs = np.array([text.numbers(norm)[0] for text, norm in zip(texts, norms, strict=True)])
    values = {name: np.full((len(texts), len(NUMBERS)), np.nan) for name in ROWS}
    for number, fits in _fits(keys, heads, np.unique(group)):
        sign = 1.0 if np.nansum(signs[group != number]) > 0 else -1.0  # of the other texts
        for place in np.flatnonzero(group == number).tolist():
            text = texts[place]
            for name, score in _scores(text, fits, keys, sign).items():
                values[name][place] = text.numbers(score)
            values[BEST_PER_QUERY, 0][place, 1:] = text.received.best_per_query
    return {
        "layer_type": keys.layer.type_name(heads[0].window),
        "n_q_heads": len(heads),
        "n_keys": sum(int(np.count_nonzero(text.received.queries)) for text in texts),
        "n_queries": sum(text.queries for text in texts),
        "n_texts": len(texts),
        "n_groups": len(np.unique(group)),
        "rows": [
            {"score": score, "value_norm": times, **_means(values[score, times], group)}
            for score, times in ROWS
            if not times or texts[0].value_norm is not None
        ],
    }


def _texts(
    keys: Keys, heads: Sequence[Queries], lengths: Mapping[int, int], config: RunnerConfig
) -> Iterator[_Text]:
    """The texts with attention to count, by id."""
    first, visible = first_query(config, keys.texts), heads[0].visible
    values = keys.rows.get(VALUE_NORM)  # (n,)
    values = None if values is None or np.isnan(values).any() else values
    assert isinstance(visible, Visible)
    for number in np.unique(keys.text).tolist():
        rows = np.flatnonzero(keys.text == number)
        own, last, used = TextRows.of(keys, rows), keys.position[rows].max(), []
        for queries in heads:
            here, lse = queries.text == number, _lse(queries)  # (m,) each
            last = max(last, queries.position[here].max(initial=0.0))
            kept = here & (queries.position >= first) & ~np.isnan(lse)
            used.append((TextRows.of(queries, kept), lse[kept]))
        end = max(lengths.get(number, 0), int(last) + 1)
        later = LaterQueries(first, end, config.near, visible)
        received = received_by_keys(used, own, later, _scale(keys), keys.layer.logits.softcap)
        if received is None:
            raise HeadError(WRONG_SCALE)
        if received.attention.any():
            group, counted = int(_group(keys)[rows[0]]), sum(len(lse) for _, lse in used)
            norm = None if values is None else values[rows].astype(np.float64)  # (n,)
            yield _Text(group, own, norm, later, counted, received)


def _fits(
    keys: Keys, heads: Sequence[Queries], groups: Ints
) -> Iterator[tuple[int, list[QueryFit]]]:
    """For each of some groups of texts: the fits of all heads to the queries of other groups."""
    bins, record = keys.texts.bins, keys.layer.rotation.record
    assert bins is not None
    totals = [
        query_sums(TextRows.of(queries, _group(queries) >= 0), bins, record) for queries in heads
    ]
    for number in groups.tolist():
        fits = []
        for queries, total in zip(heads, totals, strict=True):
            own = TextRows.of(queries, _group(queries) == number)
            left = total.without(query_sums(own, bins, record))
            if left.rows.sum() < 2:
                raise HeadError(NO_FIT)
            fits.append(left.fit())
        yield number, fits


def _scores(
    text: _Text, fits: Sequence[QueryFit], keys: Keys, key_sign: float
) -> dict[tuple[str, int], Array]:
    """Scores (n,) of the keys of a text, also times the lengths of values.

    `key_sign` says whether long keys (1) or short keys (−1) have a high score.
    """
    record, bins = keys.layer.rotation.record, keys.texts.bins
    assert bins is not None
    found = KeyScores(fits, text.keys, text.later, _scale(keys), record, bins.size).all()
    found["key_norm"] *= key_sign
    found[BEST_STATIC] = text.received.attention
    scores = {(name, 0): score for name, score in found.items()}
    if text.value_norm is not None:
        with np.errstate(divide="ignore"):
            logs = np.log(text.value_norm)  # (n,)
        scores |= {(name, 1): found[name] + logs for name in LOG_SCORES}
    return scores


def _means(values: Array, group: Ints) -> dict[str, list[Any]]:
    """Means of `values` (texts, numbers) over the texts with a value: value, influences, groups."""
    known = ~np.isnan(values)  # (texts, numbers)
    means = ratio_of_means(np.where(known, values, 0.0), known.astype(np.float64), group)
    found = [means.at(column) for column in range(len(NUMBERS))]
    return {
        name: [one.value, one.influences.tolist(), one.groups]
        for name, one in zip(NUMBERS, found, strict=True)
    }


def _group(rows: Rows) -> Ints:
    """(n,) group of the text of every row."""
    assert rows.group is not None
    return rows.group


def _scale(keys: Keys) -> float:
    """The factor of a logit on q·k."""
    scale = keys.layer.logits.scale
    return 1.0 / math.sqrt(keys.rows.width) if scale is None else scale


def _lse(queries: Queries) -> Array:
    """(n,) log-sum-exp of the logits of each query; NaN where it is not known."""
    lse = queries.rows.get(LSE)
    return np.full(len(queries), np.nan) if lse is None else lse.astype(np.float64)
