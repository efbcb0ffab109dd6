"""Attended plasticity of a fully captured model by plain sums: no Gaussian, no draws, no rotation.

The attention of every key is that of all queries of its text. All pairs of earlier keys of a text
are used, each with the product of both. Two queries of different texts at the same position are
compared.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attention_plasticity as ap
import qk_sniffer
from one_position import by_text
from qk_dump.heads import HeadId
from tiny_models import ARCHITECTURES, VOCABULARY

LAYER = 1


def peaked_model(window: int | None) -> Any:
    """A tiny random model with large queries and keys, so that few keys get most attention."""
    if window is None:
        model = ARCHITECTURES["llama"].model()
    else:
        architecture = ARCHITECTURES["mistral"]
        config = {**architecture.config, "sliding_window": window}
        model = replace(architecture, config=config).model()
    generator = torch.Generator().manual_seed(1)
    embeddings = model.get_input_embeddings().weight.data
    embeddings += embeddings.std() * torch.randn(embeddings.shape[1], generator=generator)
    for name, parameter in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            parameter.data *= 4.0
    return model


def peaked_dump(
    root: Path, texts: int, length: int, window: int | None = None, **how: Any
) -> ap.Dump:
    """A dump of one layer of the model; the number of attended keys is that of a capture."""
    model, generator = peaked_model(window), torch.Generator().manual_seed(2)
    tokens = torch.randint(8, VOCABULARY, (texts, length), generator=generator)
    how = {"attended_keys": max(16, 2048 // texts), **how}
    with (
        torch.no_grad(),
        qk_sniffer.tap(model, layers=[LAYER], tokens=False, attention=True, **how) as tapped,
    ):
        model(input_ids=tokens)
    return ap.open_dump(tapped.save(root))


def counted_through(dump: ap.Dump, q_head: int, k_head: int, size: int, window: int) -> float:
    """The same through a window: a query at t sees the keys in (t − window, t]."""
    q, k = (
        by_text(dump, HeadId(LAYER, head, kind)) for head, kind in ((q_head, "q"), (k_head, "k"))
    )
    texts, length = q.shape[:2]
    means = []
    for begin in range(0, length, size):
        for text in range(texts):
            received, value, weight = _received(q[text], k[text], window), 0.0, 0.0
            for t in range(begin, min(begin + size, length)):
                seen = range(max(4, t - window + 1), t + 1)
                if len(seen) < 2:
                    continue
                first, second = _pairs(seen)
                product = received[first] * received[second]
                prefers = ((k[text][first] - k[text][second]) @ q[:, t].T > 0).sum(axis=1)
                value += product @ (4 * prefers * (texts - prefers) / (texts * (texts - 1)))
                weight += product.sum()
            means.append(value / weight)
    return float(np.mean(means))


def counted(dump: ap.Dump, q_head: int, k_head: int, bin_size: int) -> float:
    """Mean over bins, texts and pairs of keys; all positions of all texts are captured."""
    q, k = (
        by_text(dump, HeadId(LAYER, head, kind)) for head, kind in ((q_head, "q"), (k_head, "k"))
    )
    texts, length = q.shape[:2]
    received = np.array([_received(q[text], k[text]) for text in range(texts)])  # (texts, length)
    total, tokens = 0.0, 0
    for begin in range(bin_size, length, bin_size):
        end = min(begin + bin_size, length)
        first, second = _pairs(range(4, begin))
        for text in range(texts):
            product = received[text][first] * received[text][second]
            w = k[text][first] - k[text][second]
            values = np.zeros(len(first))
            for t in range(begin, end):
                prefers = (w @ q[:, t].T > 0).sum(axis=1)  # of the texts, at position t
                values += 4 * prefers * (texts - prefers) / (texts * (texts - 1))
            mean = (product @ values) / product.sum() / (end - begin)
            total += mean * (end - begin)
            tokens += end - begin
    return float(total / tokens)


@cache
def _pairs(keys: range) -> np.ndarray:
    """(2, pairs) all pairs of keys."""
    return np.array(list(itertools.combinations(keys, 2))).T


def _received(q: np.ndarray, k: np.ndarray, window: int | None = None) -> np.ndarray:
    """(length,) mean weight that the queries of a text give each key."""
    weights = np.zeros((len(q), len(k)))
    for t in range(len(q)):
        seen = slice(0 if window is None else max(0, t - window + 1), t + 1)
        logits = k[seen] @ q[t] / math.sqrt(q.shape[1])
        exponents = np.exp(logits - logits.max())
        weights[t, seen] = exponents / exponents.sum()
    return np.asarray(weights.mean(axis=0))
