"""Key pairs of a layer with a window or chunks, drawn by tokens for every bin of queries.

A pair is drawn together with a query that sees both keys. For plasticity at one position, the
difference of the keys is turned by the distance from the position t of this query to the position τ
of the bin: w·R(t − τ)q = (R(τ − t)w)·q is the score of a query with the content of the bin at t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.metrics import CHUNKED_ATTENTION
from attention_plasticity.numeric.attended_pairs import KeyAttention, in_units_of_text
from attention_plasticity.numeric.key_pairs import KeyPairs, PairSampling
from attention_plasticity.numeric.pair_pool import WeightedKeys
from attention_plasticity.numeric.visible_pairs import (
    FEWEST_PAIRS,
    FEWEST_TEXTS,
    BinQueries,
    SeenPairs,
    Visible,
    VisibleDraw,
    VisibleKeys,
)
from attention_plasticity.numeric.windows import Window
from qk_dump.rotary import RotaryRecord, rotate
from qk_toolkit.arrays import Array, Bools, Ints

FEW_VISIBLE = (
    f"no bin has queries that see {FEWEST_PAIRS} pairs of keys from {FEWEST_TEXTS} texts; capture "
    "more keys per window"
)
NO_CHUNK_SIZE = "the size of the chunks of the layer is not known"


def window_of(keys: KeyHead, window: int | None) -> Window | Unknown | None:
    """The window of a layer; None if it has none."""
    chunked = keys.logits.chunked or keys.layer_type == CHUNKED_ATTENTION
    if window is None:
        return Unknown(NO_CHUNK_SIZE) if chunked else None
    return Window(window, chunked)


@dataclass(frozen=True)
class TurnToBin:
    """Turns key differences from the query that sees a pair to the position of its bin."""

    record: RotaryRecord
    shift: Array  # (queries,) position of the bin minus that of the query

    def __call__(self, W: Array, pairs: KeyPairs) -> Array:
        """The key differences `W` (pairs, d), turned."""
        assert isinstance(pairs, SeenPairs)
        return np.asarray(rotate(W, 0.0, self.shift[pairs.query], self.record), np.float64)


class QueryRows(NamedTuple):
    """Queries sorted by bin."""

    bin: Ints  # (n,)
    position: Array  # (n,)
    example_id: Ints | None  # (n,)
    weight: Array  # (n,)


class AttendedWeights(NamedTuple):
    """Weights of attended pairs."""

    keys: KeyAttention
    texts: Array  # (query bins, texts of the keys)


class WindowPairs(NamedTuple):
    """The pairs of all bins of queries, and the key bins that each bin sees."""

    draw: VisibleDraw
    eligible: Bools  # (query bins, key bins); no key bin for a bin with too few pairs


def window_pairs(
    rows: QueryRows,
    bins: Ints,
    keys: KeyHead,
    window: Window,
    config: RunnerConfig,
    num_pairs: int,
    rng: np.random.Generator,
    attended: AttendedWeights | None = None,
) -> WindowPairs:
    """Pairs that the queries of `bins` (query bins,) see; `num_pairs` for each key bin.

    With `attended`, keys are drawn by attention, and texts by the weight of their queries.
    """
    weight, index = keys.weights.weight, keys.bin_index
    sampling: PairSampling = "context"
    if attended is not None:
        weight = in_units_of_text(attended.keys.weight, index.examples)
    elif config.pair_sampling != "attended":
        sampling = config.pair_sampling
    weighted = WeightedKeys(index, weight)
    visible_keys = VisibleKeys(weighted, keys.rows.position, window, sampling, config.max_rel_dist)
    starts, ends = np.searchsorted(rows.bin, bins), np.searchsorted(rows.bin, bins, side="right")
    queries = [
        BinQueries.of(np.arange(start, end), rows.position[start:end], rows.weight[start:end])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    eligible = np.zeros((len(bins), len(keys.bin_index.buckets)), np.bool_)
    for code, of_bin in enumerate(queries):
        visible = Visible.of(visible_keys, of_bin)
        texts = visible.texts
        if rows.example_id is not None:
            texts = min(texts, len(np.unique(rows.example_id[starts[code] : ends[code]])))
        if visible.pairs >= FEWEST_PAIRS and (texts >= FEWEST_TEXTS or config.single_example):
            eligible[code] = visible.key_bins
    of_texts = None if attended is None else attended.texts[:, visible_keys.text_codes]
    return WindowPairs(VisibleDraw(visible_keys, queries, num_pairs, rng, of_texts), eligible)
