"""Scores of heads from the full attention weights of the model, against those of a dump.

The model runs in eager mode on the first tokens of the first texts, and returns its weights. The
tokens must be those that the rows of the dump have. The scores of the captured queries among these
tokens are computed in plain loops.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from attention_plasticity.measure.attention import KnownAttention
from attention_plasticity.measure.roles import SINK_WEIGHT, role_row
from attention_plasticity.read.layer import layer_facts
from attention_plasticity.read.rows import Queries
from qk_dump.checks import rules_of
from qk_dump.columns import ATTENTION_COLUMNS, TOKEN_ID
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.reader import HeadRows, read_head
from qk_dump.source import open_dump

TEXTS, TOKENS = 2, 1024
DISTANT_FROM = 256
Weights = npt.NDArray[np.float64]


def largest_differences(folder: Path, model: Path, texts: Path | None) -> dict[str, float]:
    """The largest difference over heads of every score.

    `texts` is the file of the texts; None: all tokens are in the rows of the dump.
    """
    dump = open_dump(folder)
    rows = {head: _rows(dump, HeadId(*head, "q")) for head in dump.query_heads}
    keys = [_rows(dump, HeadId(*head, "k")) for head in dump.key_heads]
    tokens = _tokens([*rows.values(), *keys], None if texts is None else _encoded(texts, model))
    found: dict[str, float] = {}
    weights = _weights(model, tokens)
    for (layer, head), of_head in rows.items():
        expected = _plain_scores(of_head, tokens, [one[layer, head] for one in weights])
        known = KnownAttention.of(_queries(dump, layer, of_head))
        scores = role_row(dump, layer, head, known, DISTANT_FROM).values
        for name, value in expected.items():
            difference = abs(scores[name] - value)
            if name == "effective_keys":
                difference /= value
            found[name] = max(found.get(name, 0.0), difference)
    return found


def _rows(dump: Dump, head: HeadId) -> HeadRows:
    """The captured rows among the first tokens of the first texts."""
    rows = read_head(
        dump.require_files(head),
        examples=True,
        columns=[*ATTENTION_COLUMNS, TOKEN_ID],
        rules=rules_of(dump, head),
    )
    assert rows.example_id is not None
    return rows[(rows.example_id < TEXTS) & (rows.position < TOKENS)]


def _queries(dump: Dump, layer: int, rows: HeadRows) -> Queries:
    """The rows with equal weights, and without texts: the scores are plain means."""
    facts = layer_facts(dump, layer, rows.width)
    return Queries(
        rows=rows,
        exponent=0,
        weight=np.ones(len(rows)),
        layer=facts,
        text=None,
        group=None,
        window=rows.window,
        visible=facts.visible(rows.window),
        no_errors="the scores are plain means",
    )


def _encoded(texts: Path, model: Path) -> list[list[int]]:
    """The first tokens of the first texts."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = texts.read_text(encoding="utf-8").splitlines()[:TEXTS]
    return [tokenizer(json.loads(line)["text"])["input_ids"][:TOKENS] for line in lines]


def _tokens(heads: Sequence[HeadRows], given: list[list[int]] | None) -> list[list[int]]:
    """The tokens of the texts: those that are given, which must be those of the rows."""
    found: list[dict[int, int]] = [{} for _ in range(TEXTS)]
    for rows in heads:
        assert rows.example_id is not None
        triples = zip(rows.example_id, rows.position.astype(int), rows[TOKEN_ID], strict=True)
        for text, position, token in triples:
            found[text][int(position)] = int(token)
    if given is not None:
        for tokens, ids in zip(found, given, strict=True):
            assert all(ids[position] == token for position, token in tokens.items())
        return given
    for tokens in found:
        assert sorted(tokens) == list(range(len(tokens))), "a token is in no row of the dump"
    return [[tokens[position] for position in range(len(tokens))] for tokens in found]


def _weights(folder: Path, tokens: list[list[int]]) -> list[Any]:
    """The weights of every text: (layers, heads, n, n)."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    with torch.inference_mode():
        return [
            torch.stack(
                [one[0] for one in model(torch.tensor([ids]), output_attentions=True).attentions]
            ).numpy()
            for ids in tokens
        ]


def _plain_scores(
    rows: HeadRows, tokens: list[list[int]], weights: list[Weights]
) -> dict[str, float]:
    """Every score as a plain mean over the captured queries."""
    assert rows.example_id is not None
    found: dict[str, list[float]] = {}
    for text, position in zip(rows.example_id, rows.position.astype(int), strict=True):
        row = weights[text][position, : position + 1].astype(np.float64)
        for name, value in _of_query(row, tokens[text], int(position)):
            found.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _of_query(row: Weights, ids: list[int], p: int) -> Iterator[tuple[str, float]]:
    """The values of one query, whose weights are `row` (p + 1,)."""
    yield "self_mass", float(row[p])
    yield "top_weight", float(row.max())
    yield "effective_keys", float(np.exp(-(row * np.log(np.maximum(row, 1e-300))).sum()))
    yield "far_mass", float(row[4 : p - DISTANT_FROM + 1].sum()) if p >= DISTANT_FROM else 0.0
    if p >= 1:
        yield "previous_mass", float(row[p - 1])
        yield "first_mass", float(row[0])
        yield "sink_rate", float(row[0] > SINK_WEIGHT)
    if p >= 2:
        yield "local_mass", float(row[max(p - 7, 0) : p - 1].sum())
    same = [key for key in range(p) if ids[key] == ids[p]]
    after = [key for key in range(1, p + 1) if ids[key - 1] == ids[p]]
    for name, keys in (("duplicate", same), ("induction", after)):
        if keys:
            mass, chance = float(row[keys].sum()), len(keys) / (p + 1)
            yield f"{name}_mass", mass
            yield f"{name}_chance", chance
            yield f"{name}_excess", mass - chance
