"""Simulated heads with a known plasticity, for tests of standard errors and bias.

Queries have a mean that drifts with position, an effect of their text and independent noise. Keys
have noise and a direction of their text, so that the pairs of a text are alike. The total
covariance of the queries is the identity, so the `positional` and the `full` model are both true.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.found import influence_columns
from attention_plasticity.measure.grid import Grid
from attention_plasticity.measure.plasticity import attended_columns, grid_of, plasticity_columns
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.measure.streams import Streams
from attention_plasticity.read.bins import Bins
from attention_plasticity.read.layer import Layer
from attention_plasticity.read.rows import Keys, Queries
from attention_plasticity.read.texts import DumpTexts
from qk_dump.reader import HeadRows

BUCKET_SIZE = 100


@dataclass(frozen=True)
class Population:
    """The distribution from which texts, queries and keys of one head are drawn."""

    width: int = 8
    buckets: int = 6
    texts: int = 12
    queries: int = 4  # per text and bucket
    keys: int = 6  # per text and bucket
    similarity: float = 0.3  # share of the variance of queries that a text has in common
    key_direction: float = 1.0  # strength of the direction of a text in its keys
    reach_end: float = 1.0  # share of the texts that reach the last half of the buckets
    seed: int = 0  # of the mean and the drift

    @property
    def start(self):
        """(d,) mean query at position 0."""
        return 0.5 * np.random.default_rng([self.seed, 1]).standard_normal(self.width)

    @property
    def drift(self):
        """(d,) change of the mean query over the whole context."""
        return np.random.default_rng([self.seed, 2]).standard_normal(self.width)

    def mean_at(self, position):
        """(…, d) mean query at positions."""
        share = np.asarray(position, float)[..., None] / (self.buckets * BUCKET_SIZE)
        return self.start + share * self.drift

    def true_profile(self, pairs=200_000):
        """Plasticity of every query bucket, from a large number of pairs of different texts."""
        rng = np.random.default_rng([self.seed, 3])
        W = np.sqrt(2.0) * rng.standard_normal((pairs, self.width))
        own = self.key_direction * rng.standard_normal((pairs, self.width))
        W += np.sqrt(2.0) * rng.standard_normal((pairs, 1)) * own
        deviation = np.linalg.norm(W, axis=1)
        truth = {}
        for bucket in range(1, self.buckets):
            mean = self.mean_at((bucket + 0.5) * BUCKET_SIZE - 0.5)
            p = ndtr(W @ mean / deviation)
            truth[bucket] = float((4 * p * (1 - p)).mean())
        return truth


def draw_rows(population, kind, rng, text_noise):
    """Queries or keys of all texts. `text_noise` (texts, d) is the effect of every text."""
    per_cell = population.queries if kind == "q" else population.keys
    text, bucket = np.meshgrid(np.arange(population.texts), np.arange(population.buckets))
    text, bucket = np.repeat(text.ravel(), per_cell), np.repeat(bucket.ravel(), per_cell)
    long = np.arange(population.texts) < np.ceil(population.reach_end * population.texts)
    kept = long[text] | (bucket < population.buckets // 2)
    text, bucket = text[kept], bucket[kept]
    position = (bucket * BUCKET_SIZE + rng.integers(0, BUCKET_SIZE, len(text))).astype(float)
    noise = rng.standard_normal((len(text), population.width))
    if kind == "q":
        share = population.similarity
        vectors = np.sqrt(share) * text_noise[text] + np.sqrt(1 - share) * noise
        vectors += population.mean_at(position)
    else:
        along = population.key_direction * rng.standard_normal((len(text), 1))
        vectors = noise + along * text_noise[text]
    columns = {"bucket": bucket, "position": position, "vector": vectors, "example_id": text}
    return HeadRows(columns, float(position.max()))


def key_head(rows):
    """Keys of a layer without RoPE. Bins are as wide as buckets."""
    context = BUCKET_SIZE * (int(rows.bucket.max()) + 1)
    return keys_of(rows, np.ones(len(rows)), Layer(), Bins(BUCKET_SIZE, context))


def keys_of(rows, weight, layer, bins):
    """Keys from rows whose texts have the numbers from 0 on."""
    assert rows.example_id is not None
    texts = DumpTexts(np.arange(int(rows.example_id.max()) + 1), bins=bins)
    group = texts.group_of(rows.example_id)
    return Keys(rows, 0, weight, layer, rows.example_id, group, texts)


def analyse(queries, keys, q_head=0, weight=None, pool=None, **settings):
    """Plasticity in bins of a simulated head; `weight` are the tokens its queries stand for."""
    config = RunnerConfig(**{"num_pairs_per_bin": 64, **settings})
    weight = np.ones(len(queries)) if weight is None else weight
    assert queries.example_id is not None
    group = keys.texts.group_of(queries.example_id)
    of_layer = (keys.layer, queries.example_id, group, None, Visible(), "")
    grid = grid_of(Queries(queries, 0, weight, *of_layer), keys)
    of_keys, of_queries = (Streams(config.seed, 0, head) for head in (0, q_head))
    assert isinstance(grid, Grid)
    parts = (
        *plasticity_columns(grid, keys, config, of_keys),
        *attended_columns(grid, pool, [q_head], config, [of_queries]),
    )
    metrics = {"n_text_groups": len(np.unique(group)), **parts[0].values, **parts[1].values}
    quantities = [one for part in parts for one in part.quantities]
    tables = {**parts[0].tables, "influences": influence_columns(quantities)}
    return HeadResult(0, q_head, 0, metrics, tables)
