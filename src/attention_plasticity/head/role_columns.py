"""What a head does, as table columns: its scores on texts and on repeated tokens, and words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.layer import logits_of
from attention_plasticity.head.plasticity_columns import influence_rows
from attention_plasticity.head.result import Columns
from attention_plasticity.head.token_weights import TokenWeights, token_weights
from attention_plasticity.metrics import ROLES
from attention_plasticity.numeric.errors.text_groups import TextGroups
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.role_scores import (
    QueryAttention,
    RoleQueries,
    repeated_scores,
    top_weights,
)
from attention_plasticity.numeric.windows import Window
from attention_plasticity.numeric.word_choice import strongest_queries, typical_queries
from attention_plasticity.roles import ROLES as DEFINED_ROLES
from qk_dump.attention_columns import AttentionRows
from qk_dump.column_rules import rules_of
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows, read_head
from qk_toolkit.arrays import Ints

SCORES = tuple(metric.column for metric in ROLES.columns if metric.error)
"""Columns of the table of roles that have a standard error."""
DECIDING = tuple(role.column for role in DEFINED_ROLES)
"""Those that decide the role of a head on texts."""


def role_queries(
    rows: HeadRows,
    weights: TokenWeights,
    group: Ints | None,
    window: int | None,
    *,
    chunked: bool,
) -> tuple[RoleQueries, Ints] | None:
    """The queries with known attention, and their row numbers; None without such queries."""
    if rows.attention is None:
        return None
    known = np.flatnonzero(~np.isnan(rows.attention.lse))
    if len(known) == 0:
        return None
    weight = weights.of(known).weight
    position = rows.position[known]
    found = RoleQueries(
        attention=_attention(rows.attention[known]),
        position=position,
        visible=position + 1 if window is None else Window(window, chunked).visible(position),
        weight=weight / weight.max(),
        group=None if group is None else group[known],
    )
    return found, known


def _attention(rows: AttentionRows) -> QueryAttention:
    return QueryAttention(
        **{column.name: getattr(rows, column.name) for column in fields(QueryAttention)}
    )


def role_columns(
    queries: RoleQueries, scores: Mapping[str, Estimate], repeated: Mapping[str, Estimate]
) -> Columns:
    """The row of the table of roles, without labels, from scores on texts and repeated tokens."""
    scores = {**scores, **repeated}
    groups = math.nan
    if queries.group is not None:
        groups = len(np.unique(queries.group))
    columns: Columns = {"n_queries": [len(queries.position)], "n_groups": [groups]}
    for name in SCORES:
        score = scores.get(name)
        columns[name] = [math.nan if score is None else score.value]
        known = score is not None and score.groups > 0
        columns[f"{name}_se"] = [score.standard_error if score and known else math.nan]
    of_repeated = [score.groups for score in repeated.values() if score.groups > 0]
    columns["repeated_groups"] = [max(of_repeated, default=math.nan)]
    return columns


def role_influences(scores: Mapping[str, Estimate]) -> Columns:
    """Rows of the table of influences: the scores on texts that decide roles."""
    known = [(name, scores[name]) for name in DECIDING if name in scores]
    return influence_rows([(name, math.nan, one) for name, one in known if one.groups > 0])


def scores_on_repeated_tokens(dump: Dump, layer: int, q_head: int) -> dict[str, Estimate]:
    """The standard scores of a head, from the dump of repeated tokens; empty without one."""
    repeated, head = dump.repeated, HeadId(layer, q_head, "q")
    if repeated is None or head not in repeated.folders:
        return {}
    rows = read_head(
        repeated.require_files(head),
        max_rows=RunnerConfig().max_tokens_per_head,
        seed=0,
        with_examples=True,
        rules=rules_of(repeated, layer),
        with_attention=True,
    )
    assert rows.example_id is not None
    group = TextGroups(np.unique(rows.example_id)).of(rows.example_id)
    weights = token_weights(repeated, "q", rows)
    chunked = logits_of(repeated, layer).chunked
    found = role_queries(rows, weights, group, rows.sliding_window, chunked=chunked)
    return {} if found is None else repeated_scores(found[0])


def word_columns(
    rows: HeadRows, queries: RoleQueries | None, known: Ints | None, words: dict[int, str] | None
) -> Columns:
    """Rows of the table of words; empty if tokens or their texts are not known."""
    if queries is None or known is None or not words or rows.example_id is None:
        return {}
    if rows.token_id is None or rows.attention is None:
        return {}
    attention = rows.attention[known]
    if attention.argmax_token is None or attention.argmax_position is None:
        return {}
    tokens = rows.token_id[known].astype(np.int64)  # (n,)
    keys = attention.argmax_token.astype(np.int64)  # (n,)
    usable = np.flatnonzero((tokens >= 0) & (keys >= 0))
    top = top_weights(queries.attention)  # (n,)
    places = attention.argmax_position.astype(np.int64)  # (n,)
    texts = rows.example_id[known]  # (n,)
    pairs = np.stack([tokens, keys], axis=1)[usable]  # (m, 2)
    key_places = np.stack([texts, places], axis=1)[usable]  # (m, 2)
    chosen = [
        ("strongest", usable[strongest_queries(top[usable], pairs, key_places)]),
        ("typical", usable[typical_queries(top[usable], queries.weight[usable])]),
    ]
    kinds = [kind for kind, members in chosen for _ in members]
    members = np.concatenate([members for _, members in chosen])
    position = queries.position[members].astype(np.int64)
    return {
        "kind": kinds,
        "example_id": texts[members].tolist(),
        "q_position": position.tolist(),
        "k_position": places[members].tolist(),
        "distance": (position - places[members]).tolist(),
        "weight": top[members].tolist(),
        "query_token": [words.get(token, "") for token in tokens[members].tolist()],
        "key_token": [words.get(token, "") for token in keys[members].tolist()],
    }
