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
from attention_plasticity.measure.bin_pairs import SortedKeys, bin_pairs
from attention_plasticity.measure.grid import Grid
from attention_plasticity.measure.plasticity import grid_of
from attention_plasticity.measure.streams import Purpose, Streams
from attention_plasticity.read.rows import read_keys, read_queries
from qk_dump.heads import HeadId
from qk_dump.reader import read_head
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
    keys = read_keys(dump, layer, k_head, config)
    queries = read_queries(dump, layer, q_head, keys, config)
    grid = grid_of(queries, keys)
    assert isinstance(grid, Grid)
    rng = Streams(config.seed, layer, k_head).rng(Purpose.BIN_PAIRS)
    how = (config.pair_sampling, config.max_rel_dist, config.num_pairs_per_bin, rng)
    own = SortedKeys.of(keys, keys.weight, grid.bins)
    pairs = bin_pairs(own, grid, queries.visible, *how)  # type: ignore[arg-type]
    total, tokens = 0.0, 0
    for number, used in zip(grid.number, pairs.of_bin, strict=True):
        in_bin = np.floor(queries.position / grid.bins.size) == number
        vectors, position = queries.after[in_bin], queries.position[in_bin]
        values = _counts(vectors, position, pairs.W[used])
        cell = pairs.cell[used] if config.pair_sampling != "context" else np.zeros(len(used), int)
        total += in_bin.sum() * np.mean([values[cell == one].mean() for one in np.unique(cell)])
        tokens += int(in_bin.sum())
    return total / tokens


def _counts(vectors: np.ndarray, position: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Mean over positions of 4k(E − k)/(E(E − 1)), where k of E texts prefer the first key."""
    found = []
    for p in np.unique(position):
        prefers = vectors[position == p] @ W.T > 0  # (texts, pairs)
        k, texts = prefers.sum(axis=0), len(prefers)
        found.append(4 * k * (texts - k) / (texts * (texts - 1)))
    return np.asarray(np.mean(found, axis=0))


def by_text(dump: ap.Dump, head: HeadId) -> np.ndarray:
    """(texts, positions, d) vectors of a dump with every position."""
    rows = read_head(dump.require_files(head), examples=True)
    assert rows.example_id is not None
    order = np.lexsort((rows.position, rows.example_id))
    texts = len(np.unique(rows.example_id))
    return rows.vectors[order].astype(np.float64).reshape(texts, -1, rows.width)
