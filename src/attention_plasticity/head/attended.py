"""Attended plasticity of one query head, in bins: pairs in proportion to the attention of keys.

The pairs of a bin of queries are earlier keys of one text. They are scored with the queries as
captured, and with the queries turned to one position of the bin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from attention_plasticity.head.aligned import BinnedHead
from attention_plasticity.head.attended_keys import AttendedHead
from attention_plasticity.numeric.attended_pairs import AttendedDraw, AttendedKeys, OneCellDraw
from attention_plasticity.numeric.bins import BinWeights
from attention_plasticity.numeric.eligibility import earlier_cells
from attention_plasticity.numeric.errors.counting import CountingSums
from attention_plasticity.numeric.pair_samples import KeyVectors, PairSample
from attention_plasticity.numeric.profile import AttentionPlasticity, weighted_mean
from attention_plasticity.numeric.scoring import QuerySample, score_models

Bools = npt.NDArray[np.bool_]

PAIRS = 512  # per bin of queries; their error is small beside that of the texts
_SEED = 1  # beside the seed of the pairs, so that other pairs do not change


@dataclass(frozen=True)
class AttendedPlasticity:
    """Plasticity of pairs in proportion to the attention of their keys, and sizes of the sample."""

    pooled: AttentionPlasticity  # of queries as captured
    aligned: AttentionPlasticity | str  # of turned queries, or why it is not known
    weights: BinWeights
    effective_pairs: float  # mean over bins
    later_queries: float | None  # mean over drawn keys; None: attention is that of the capture


def attended_plasticity(head: BinnedHead, own: AttendedHead, seed: int) -> AttendedPlasticity:
    """Attended plasticity of a head. `seed` is that of its key pairs."""
    index, models = own.keys.bin_index, list(head.models)
    eligible = earlier_cells(models[0].queries.moments.bucket, index.buckets)
    rng = np.random.default_rng([seed, _SEED])
    keys = AttendedKeys(index, own.attention)
    draw = AttendedDraw(keys, head.text_weights(own.keys), PAIRS, False, rng)
    reached = np.asarray(eligible.any(axis=1))[:, None]  # (query bins, 1)
    vectors = KeyVectors(own.keys.vectors_after_rope)
    sample = PairSample(vectors, OneCellDraw(draw, eligible), index.buckets[:1], reached)
    models = [_with_counts(model, head, own, len(eligible)) for model in models]
    found = score_models(models, sample, of_cells=False)
    weight = head.weights.everywhere.sum(axis=1)  # (query bins,)
    later = None
    if own.from_queries:
        later = weighted_mean(np.array(draw.later_queries), weight)
    return AttendedPlasticity(
        pooled=found[-1],
        aligned=head.keys.rotation.problem or found[0],
        weights=head.weights,
        effective_pairs=weighted_mean(np.array(draw.effective_pairs), weight),
        later_queries=later,
    )


def _with_counts(
    sample: QuerySample, head: BinnedHead, own: AttendedHead, bins: int
) -> QuerySample:
    """A model with the groups of the keys of the pool, and with sums for counts."""
    texts = sample.texts
    if texts is None:
        return sample
    assert own.keys.rows.example_id is not None
    counting = None
    if head.config.counting:
        counting = CountingSums(texts.queries, 0.0, bins, 1, None, head.weights.everywhere)
    groups = own.keys.groups.of(own.keys.rows.example_id)
    return sample._replace(texts=replace(texts, key_group=groups, counting=counting))
