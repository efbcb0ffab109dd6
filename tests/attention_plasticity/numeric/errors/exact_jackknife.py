"""Slow reference: refit the query model without each group of texts, and score all pairs again.

The rotation is held fixed. Pairs are those of the whole sample, without the pairs of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.queries import RotatedQueries
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.numeric.eligibility import earlier_cells
from attention_plasticity.numeric.key_pairs import KeyPairs
from attention_plasticity.numeric.pair_samples import KeyVectors, PairSample
from attention_plasticity.numeric.position import regress
from attention_plasticity.numeric.profile import AttentionPlasticity, means_by_fifth
from attention_plasticity.numeric.query_model import QueryModel, bucket_gaussians, bucket_moments
from attention_plasticity.numeric.scoring import score_pairs
from qk_dump.reader import HeadRows


@dataclass(frozen=True)
class ExactJackknife:
    """Estimates of the whole sample, and of the sample without each group."""

    whole: dict[str, np.ndarray]
    without: list[dict[str, np.ndarray]]

    def influences(self, name: str) -> np.ndarray:
        """(g, …) change of an estimate when a group is left out, with opposite sign."""
        return np.array([self.whole[name] - part[name] for part in self.without])

    def standard_error(self, name: str) -> np.ndarray:
        """Delete-a-group jackknife standard error."""
        parts = np.array([part[name] for part in self.without])
        groups = len(parts)
        return np.sqrt((groups - 1) / groups * ((parts - parts.mean(axis=0)) ** 2).sum(axis=0))


def exact_jackknife(
    queries: HeadRows, keys: KeyHead, config: RunnerConfig, groups: int
) -> ExactJackknife:
    """Leave out every group of texts (`example_id` modulo `groups`) and compute again."""
    rotated = RotatedQueries.of(queries, keys.signs)
    drawn = keys.index.draw(
        config.pair_sampling,
        config.num_pairs_per_bucket,
        config.max_rel_dist,
        np.random.default_rng(config.seed),
    )
    assert rotated.example_id is not None
    assert keys.rows.example_id is not None
    of_query = rotated.example_id % groups
    of_pair = keys.rows.example_id[drawn.first] % groups

    def estimate(kept: Any, pairs: Any) -> dict[str, np.ndarray]:
        chosen = KeyPairs.sorted_by_owner(
            drawn.first[pairs], drawn.second[pairs], drawn.owner[pairs], drawn.other[pairs]
        )
        result = _score(rotated, keys, chosen, kept, config)
        fifths = means_by_fifth(
            result.profile, result.query_positions, result.query_counts, queries.position_max
        )
        return {
            "plasticity": result.plasticity,
            "ap_bucket": result.profile,
            "ap_overall": np.array(result.overall),
            "ap_last20": np.array(fifths[-1]),
            "ap_drop": np.array(fifths[0] - fifths[-1]),
        }

    whole = estimate(np.ones(len(of_query), bool), np.ones(len(of_pair), bool))
    without = [estimate(of_query != group, of_pair != group) for group in range(groups)]
    return ExactJackknife(whole, without)


def _score(
    rotated: RotatedQueries, keys: KeyHead, pairs: KeyPairs, kept: Any, config: RunnerConfig
) -> AttentionPlasticity:
    position, vectors = rotated.position[kept], rotated.vectors[kept]
    fit = regress(position, vectors)
    residual = vectors[:, 0] - fit.alpha[0] - fit.beta[0] * position
    variance = np.full(len(fit.alpha), residual @ residual / (len(position) - 2))
    moments = bucket_moments(position, rotated.bucket[kept], vectors)
    gaussians = bucket_gaussians(config.query_model, moments, fit.alpha, fit.beta, variance)
    eligible = earlier_cells(moments.bucket, keys.index.buckets)
    vectors_of_keys = KeyVectors(keys.rows.vectors, rotated.basis)
    sample = PairSample(vectors_of_keys, pairs, keys.index.buckets, eligible)
    return score_pairs(QueryModel(moments, gaussians), sample)
