"""Plasticity at one position by counting: no Gaussian, no rotation, plain loops.

Every position of every text must be captured. Two queries of different texts at the same position
are compared. The package gives only the bins and the pairs of keys.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attention_plasticity as ap
import qk_sniffer
from attention_plasticity.head.aligned import BinnedHead
from attention_plasticity.head.binned_queries import BinnedQueries
from attention_plasticity.head.rows import KeyHead, read_queries
from attention_plasticity.head.token_weights import token_weights
from attention_plasticity.head_analysis import pair_seed
from attention_plasticity.numeric.key_pairs import KeyPairs
from qk_dump.layout import HeadId
from tiny_models import ARCHITECTURES, VOCABULARY


def tapped_dump(
    root: Path,
    model_type: str,
    layers: list[int],
    *,
    texts: int = 16,
    length: int = 256,
    config: dict[str, Any] | None = None,
    **how: Any,
) -> ap.Dump:
    """A dump of random texts of one length, from a tiny random model with the given config.

    All embeddings have a common part, so that queries have a mean and prefer some keys.
    """
    known = ARCHITECTURES[model_type]
    model = replace(known, config={**known.config, **(config or {})}).model()
    generator = torch.Generator().manual_seed(1)
    embeddings = model.get_input_embeddings().weight.data
    embeddings += 2 * embeddings.std() * torch.randn(embeddings.shape[1], generator=generator)
    tokens = torch.randint(8, VOCABULARY, (texts, length), generator=generator)
    with torch.no_grad(), qk_sniffer.tap(model, layers=layers, tokens=False, **how) as tapped:
        model(input_ids=tokens)
    return ap.open_dump(tapped.save(root))


def counted_at_one_position(
    dump: ap.Dump, layer: int, q_head: int, k_head: int, config: ap.RunnerConfig
) -> float:
    """Mean over bins, weighted by tokens, of the mean over cells, of the mean over pairs."""
    keys = KeyHead.read(dump, layer, k_head, config)
    rows, _ = read_queries(dump, HeadId(layer, q_head, "q"), keys, config)
    bins = keys.all_texts.bins
    assert bins is not None
    sampling = config.pair_sampling
    assert isinstance(config.num_pairs_per_bucket, int)
    queries = BinnedQueries.of(rows, token_weights(dump, "q", rows), bins, keys)
    rng = np.random.default_rng([pair_seed(config, layer, q_head), 2])
    pairs = BinnedHead(queries, keys, bins, config)._pairs(config.num_pairs_per_bucket, rng)
    key_bins = np.floor(keys.rows.position / bins.size).astype(int)
    total, tokens = 0.0, 0
    for query_bin in range(1, -(-bins.context // bins.size)):
        drawn = pairs
        if not isinstance(drawn, KeyPairs):
            drawn = drawn.draw(keys.bin_index.buckets < query_bin)
        in_bin = np.floor(rows.position / bins.size) == query_bin
        vectors, position = rows.vectors[in_bin], rows.position[in_bin]
        cells: dict[int, list[float]] = {}
        for first, second, owner in zip(drawn.first, drawn.second, drawn.owner, strict=True):
            if max(key_bins[first], key_bins[second]) >= query_bin:
                continue
            w = keys.rows.vectors[first].astype(float) - keys.rows.vectors[second]
            cell = int(owner) if sampling != "context" else 0
            cells.setdefault(cell, []).append(_count(vectors, position, w))
        total += in_bin.sum() * np.mean([np.mean(values) for values in cells.values()])
        tokens += int(in_bin.sum())
    return total / tokens


def _count(vectors: np.ndarray, position: np.ndarray, w: np.ndarray) -> float:
    """Mean over positions of 4k(E − k)/(E(E − 1)), where k of E texts prefer the first key."""
    _, place, texts = np.unique(position, return_inverse=True, return_counts=True)
    k = np.bincount(place, vectors @ w > 0)  # (positions,)
    return float(np.mean(4 * k * (texts - k) / (texts * (texts - 1))))
