"""Attended plasticity of one query head, in bins: pairs in proportion to the attention of keys.

The pairs of a bin of queries are earlier keys of one text. They are scored with the queries as
captured, and with the queries turned to one position of the bin.

Attended plasticity as table columns: means, errors, bias, counts, sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attention_plasticity.head.aligned import BinnedHead
from attention_plasticity.head.key_pool import AttendedHead
from attention_plasticity.head.plasticity_columns import COUNTING_OFF, NO_COUNTS
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.head.values import HeadValues
from attention_plasticity.head.windows import FEW_VISIBLE
from attention_plasticity.metrics import (
    ATTENDED,
    ATTENDED_ALIGNED,
    ATTENDED_ALIGNED_COUNTED,
    ATTENDED_COUNTED,
)
from attention_plasticity.numeric.attended_pairs import AttendedDraw, AttendedKeys
from attention_plasticity.numeric.bins import BinWeights
from attention_plasticity.numeric.eligibility import earlier_cells
from attention_plasticity.numeric.errors.counting import CountingSums
from attention_plasticity.numeric.pair_samples import KeyVectors, OneCellDraw, PairSample
from attention_plasticity.numeric.profile import AttentionPlasticity, weighted_mean
from attention_plasticity.numeric.scoring import QuerySample, score_models

PAIRS = 512  # per bin of queries; their error is small beside that of the texts
_SEED = 1  # beside the seed of the pairs, so that other pairs do not change
NO_ATTENDED_PAIRS = (
    "no bin of queries sees two earlier keys of one of its texts that receive attention"
)
WINDOWED = "in layers with a window or chunks, it is not computed"
FROM_CAPTURE = "the attention of the keys was recorded by the capture, in the column received"


@dataclass(frozen=True)
class AttendedPlasticity:
    """Plasticity of pairs in proportion to the attention of their keys, and sizes of the sample."""

    pooled: AttentionPlasticity  # of queries as captured
    aligned: AttentionPlasticity | Unknown  # of turned queries
    weights: BinWeights
    effective_pairs: float | None  # mean over bins; None: pairs are seen through a window
    later_queries: float | None  # mean over drawn keys; None: not known
    windowed: bool  # pairs are seen through a window


def attended_plasticity(head: BinnedHead, own: AttendedHead, seed: int) -> AttendedPlasticity:
    """Attended plasticity of a head. `seed` is that of its key pairs."""
    draw = _draw(head, own, np.random.default_rng([seed, _SEED]))
    vectors = KeyVectors(own.keys.vectors_after_rope)
    reached = np.asarray(draw.eligible.any(axis=1))[:, None]  # (query bins, 1)
    sample = PairSample(vectors, draw, own.keys.bin_index.buckets[:1], reached)
    models = [_with_counts(model, head, own, len(reached)) for model in head.models]
    found = score_models(models, sample, of_cells=False)
    weight = head.weights.everywhere.sum(axis=1)  # (query bins,)
    sizes = draw.pairs if isinstance(draw.pairs, AttendedDraw) else None
    later = None
    if own.from_queries and sizes is not None:
        later = weighted_mean(np.array(sizes.later_queries), weight)
    ess = None if sizes is None else weighted_mean(np.array(sizes.effective_pairs), weight)
    problem = head.keys.rotation.problem
    return AttendedPlasticity(
        pooled=found[-1],
        aligned=found[0] if problem is None else Unknown(problem),
        weights=head.weights,
        effective_pairs=ess,
        later_queries=later,
        windowed=head.window is not None,
    )


def _draw(head: BinnedHead, own: AttendedHead, rng: np.random.Generator) -> OneCellDraw:
    """The draw of the pairs of every bin, of earlier bins or through a window."""
    if head.window is not None:
        seen = head.window_pairs(own.keys, PAIRS, rng, own)
        return OneCellDraw(seen.draw, np.asarray(seen.eligible.any(axis=1))[:, None])
    index = own.keys.bin_index
    eligible = earlier_cells(head.models[0].queries.moments.bucket, index.buckets)
    keys = AttendedKeys(index, own.attention)
    return OneCellDraw(AttendedDraw(keys, head.text_weights(own.keys), PAIRS, False, rng), eligible)


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
        weights = head.weights.everywhere
        counting = CountingSums(texts.queries, 0.0, bins, 1, None, weights, with_gap=False)
    groups = own.keys.groups.of(own.keys.rows.example_id)
    return sample._replace(texts=replace(texts, key_group=groups, counting=counting))


def add_attended(
    values: HeadValues, found: AttendedPlasticity | Unknown, why_no_errors: str
) -> None:
    """Attended plasticity over a bin and at one position."""
    names = ((ATTENDED, ATTENDED_COUNTED), (ATTENDED_ALIGNED, ATTENDED_ALIGNED_COUNTED))
    if isinstance(found, Unknown):
        for name in (name for both in names for name in both):
            values.add_estimate(name, math.nan, None, found.reason, found.reason)
        values.add({f"{ATTENDED}_ess": math.nan, "n_later_queries": math.nan}, found.reason)
        return
    no_pairs = FEW_VISIBLE if found.windowed else NO_ATTENDED_PAIRS
    for both, plasticity in zip(names, (found.pooled, found.aligned), strict=True):
        _add(values, both, plasticity, found.weights, no_pairs, why_no_errors)
    why = WINDOWED if found.effective_pairs is None else no_pairs
    size = math.nan if found.effective_pairs is None else found.effective_pairs
    values.add({f"{ATTENDED}_ess": size}, why)
    why = FROM_CAPTURE if found.later_queries is None else no_pairs
    later = math.nan if found.later_queries is None else found.later_queries
    values.add({"n_later_queries": later}, WINDOWED if found.windowed else why)


def _add(
    values: HeadValues,
    names: tuple[str, str],
    plasticity: AttentionPlasticity | Unknown,
    weights: BinWeights,
    no_pairs: str,
    why_no_errors: str,
) -> None:
    """A mean over tokens and its count, with errors."""
    if isinstance(plasticity, Unknown):
        for name in names:
            values.add_estimate(name, math.nan, None, plasticity.reason, plasticity.reason)
        return
    profile, estimate, counted = plasticity.profile, None, None
    if plasticity.uncertainty is not None:
        estimate = plasticity.uncertainty.weighted(profile, weights.everywhere)
        counted = None if plasticity.counted is None else plasticity.counted.counted
    value = weighted_mean(profile, weights.everywhere.sum(axis=1))
    values.add_estimate(names[0], value, estimate, no_pairs, why_no_errors)
    why = why_no_errors
    if estimate is not None:
        why = COUNTING_OFF if counted is None else NO_COUNTS
    why = values.missing.get(names[0], why)
    value = math.nan if counted is None else counted.value
    values.add_estimate(names[1], value, counted, why, why)
