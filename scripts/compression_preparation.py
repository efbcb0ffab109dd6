"""What is made before keys are evicted: calibration, texts, and rankings of their keys.

Fits of the scores and values of heads come from the calibration texts alone: the first pieces of
Moby-Dick, captured and analysed with the toolkit. Other texts are evaluated. Every file is made
once and read by later runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import spearmanr
from transformers import AutoTokenizer

import attention_plasticity as ap
from attention_plasticity.export.queries import HeadQueries
from attention_plasticity.head.layer import logits_of
from attention_plasticity.head.texts import texts_of_dump
from attention_plasticity.numeric.bins import Bins
from attention_plasticity.numeric.key_scores import (
    LOG_SCORES,
    KeysOfText,
    ScoredQueries,
    score_keys,
    times_value,
)
from attention_plasticity.numeric.query_fit import QueryFit, fit_queries
from compression_conditions import (
    BEST_STATIC,
    ORDERS,
    PER_QUERY,
    SCORES,
    Ints,
    Plan,
    Ranks,
    ranks_of,
)
from compression_eviction import Received, load_model, recorded
from compression_inputs import Inputs, Tokens
from qk_dump.source import open_dump
from qk_sniffer.demo.books import BOOKS, write_pieces
from qk_sniffer.demo.command import capture_demo
from qk_toolkit.cpus import available_cpus

_PIECES = 24  # of a book; the last ones are evaluated
_SIGN_TEXTS = 2  # calibration texts that say whether long or short keys receive attention
_BINS = 16  # of a text
_ALL = 10**7  # rows of a head
_OF_KEY_HEADS = {
    "static_error": "static_error",
    "static_error_attended": "attended_static_error",
    "far": "far_mass",
}
_OF_QUERY_HEADS = {
    "ap_attended": "ap_attended",
    "ap_aligned": "ap_aligned",
    "ap_overall": "ap_overall",
    "entropy": "attn_entropy",
}

Keys = npt.NDArray[np.float32]


def prepare(demo: Path, inputs: Inputs, plan: Plan, device: str) -> None:
    """Make the tokens, the values of heads and the rankings that are missing."""
    calibration = capture_demo(demo, BOOKS[0], str(plan.context), str(plan.calibration_texts))
    model_folder = next((demo / "model").iterdir())
    if not inputs.has_heads:
        results = demo / "results" / f"compression-{plan.context}"
        inputs.write_heads(_heads(calibration, results))
    if not inputs.has_tokens:
        inputs.write_tokens(_tokens(inputs.folder, model_folder, plan))
    evaluated = inputs.tokens("evaluation")
    missing = [text for text in evaluated if not inputs.has_ranks(text)]
    if missing:
        model = load_model(model_folder, device)
        signs = _key_signs(model, list(inputs.tokens("calibration").values()), plan)
        texts = [_recorded(model, evaluated[text], plan) for text in missing]
        for text, ranks in zip(missing, _rankings(calibration, texts, signs, plan), strict=True):
            inputs.write_ranks(text, ranks)


def _heads(dump: Path, results: Path) -> pd.DataFrame:
    """One row per key head: the values by which heads are ordered."""
    run = ap.analyze_dump(dump, output_dir=str(results), counting=False)
    row = ["layer", "k_head"]
    table = run.key_heads.sort_values(row, ignore_index=True)
    heads = table[row].copy()
    for name in ORDERS:
        if name in _OF_KEY_HEADS:
            heads[name] = table[_OF_KEY_HEADS[name]]
        else:
            means = run.head_metrics.groupby(row)[_OF_QUERY_HEADS[name]].mean()
            heads[name] = means.reindex(pd.MultiIndex.from_frame(heads[row])).to_numpy()
    assert not heads.isna().any().any(), "a key head has no value"
    return heads


def _tokens(folder: Path, model: Path, plan: Plan) -> Tokens:
    """The tokens of the evaluated texts, and of some calibration texts."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    found: Tokens = {"calibration": {}, "evaluation": {}}
    for book in BOOKS:
        path = folder / f"{book}.jsonl"
        write_pieces(path, book, _PIECES, plan.context)
        lines = path.read_text(encoding="utf-8").splitlines()
        used = {"evaluation": lines[_PIECES - plan.texts_per_book :]}
        if book == BOOKS[0]:
            used["calibration"] = lines[:_SIGN_TEXTS]
        for kind, pieces in used.items():
            for piece in map(json.loads, pieces):
                ids = tokenizer(piece["text"])["input_ids"][: plan.context]
                assert len(ids) == plan.context, "a text is too short"
                found[kind][piece["id"]] = ids
    return found


def _recorded(model: Any, tokens: Ints, plan: Plan) -> Received:
    return recorded(model, tokens, Received(plan.first, plan.near, plan.sinks))


def _per_query(received: Keys, plan: Plan) -> npt.NDArray[np.float64]:
    """Attention per query that sees a key from afar, from sums (…, n)."""
    position = np.arange(plan.context)
    queries = plan.context - np.maximum(position + plan.near, plan.first)  # (n,)
    return np.asarray(received / np.maximum(queries, 1))


def _key_signs(model: Any, texts: Sequence[Ints], plan: Plan) -> npt.NDArray[np.float64]:
    """(layers, k_heads) 1 if long keys receive more attention in the calibration texts, else −1."""
    chosen, correlations = plan.candidates, []
    for received in (_recorded(model, tokens, plan) for tokens in texts):
        lengths = np.linalg.norm(np.stack(received.keys), axis=-1)  # (layers, k_heads, n)
        attention = _per_query(np.stack(received.attention), plan)
        pairs = zip(
            lengths[..., chosen].reshape(-1, chosen.stop - chosen.start),
            attention[..., chosen].reshape(-1, chosen.stop - chosen.start),
            strict=True,
        )
        correlations.append([float(spearmanr(*pair).statistic) for pair in pairs])
    mean = np.mean(correlations, axis=0).reshape(lengths.shape[:2])
    return np.where(mean > 0, 1.0, -1.0)


def _rankings(
    dump: Path, texts: Sequence[Received], signs: npt.NDArray[np.float64], plan: Plan
) -> list[dict[str, Ranks]]:
    """For every text: (layers, k_heads, n) ranks of its keys by every score."""
    layers = range(len(signs))
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the workers, which each take one CPU
    arguments = [
        (
            dump,
            layer,
            np.stack([text.keys[layer] for text in texts]),  # (texts, k_heads, n, d)
            np.stack([text.value_norm[layer] for text in texts]),  # (texts, k_heads, n)
            signs[layer],
            plan,
        )
        for layer in layers
    ]
    with ProcessPoolExecutor(available_cpus(), get_context("spawn")) as pool:
        scores = list(pool.map(layer_scores, *zip(*arguments, strict=True)))
    found = []
    for number, text in enumerate(texts):
        attention = np.stack(text.attention)  # (layers, k_heads, n)
        ranks = {name: np.stack([one[name][number] for one in scores]) for name in scores[0]}
        ranks[BEST_STATIC] = ranks_of(attention, plan)
        ranks[PER_QUERY] = ranks_of(_per_query(attention, plan), plan)
        found.append({name: ranks[name] for name in SCORES})
    return found


def layer_scores(
    folder: Path, layer: int, keys: Keys, value_norm: Keys, signs: Any, plan: Plan
) -> dict[str, Ranks]:
    """(texts, k_heads, n) ranks of the keys (texts, k_heads, n, d) of a layer by every score."""
    fits = _fits(folder, layer, plan)
    group = len(fits) // keys.shape[1]
    scale = logits_of(open_dump(folder), layer).scale or keys.shape[-1] ** -0.5
    found: dict[str, Ranks] = {}
    queries = ScoredQueries(plan.context, plan.first, plan.near)
    position, ones = np.arange(plan.context, dtype=np.float64), np.ones(plan.context)
    for text, head in np.ndindex(*keys.shape[:2]):
        own = fits[head * group : (head + 1) * group]
        of_text = KeysOfText(keys[text, head], position, ones)
        scores = score_keys(own, of_text, queries, scale=scale, key_sign=float(signs[head]))
        lengths = value_norm[text, head].astype(np.float64)  # (n,)
        scores |= {f"{name} × v": times_value(scores[name], lengths) for name in LOG_SCORES}
        for name, score in scores.items():
            table = found.setdefault(name, np.empty(keys.shape[:3], np.uint16))
            table[text, head] = ranks_of(score, plan)
    return found


def _fits(folder: Path, layer: int, plan: Plan) -> list[QueryFit]:
    """The fits of the query heads of a layer to the calibration texts."""
    dump = open_dump(folder)
    texts = texts_of_dump(dump, [layer])
    bins = Bins(plan.context // _BINS, plan.context)
    fits = []
    for head in sorted(head for head in dump.query_heads if head[0] == layer):
        read = HeadQueries.read(dump, head, texts, max_rows=_ALL)
        rows, weight = read.rows, read.weights.weight
        fits.append(fit_queries(read.after_rope, rows.position, weight, bins, read.rotation.record))
    return fits
