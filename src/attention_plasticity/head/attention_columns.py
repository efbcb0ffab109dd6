"""The attention of the queries of a head as table columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attention_plasticity.head.layer import NO_COLUMNS
from attention_plasticity.head.result import Columns
from attention_plasticity.head.token_weights import TokenWeights
from attention_plasticity.head.values import HeadValues
from attention_plasticity.metrics import ATTENTION_MEANS, BUCKET_MEANS, MASS_COLUMNS
from attention_plasticity.numeric.attention_means import (
    BucketMeans,
    bucket_means,
    common_bins,
    distant_mass,
    far_mass,
    head_mean,
)
from attention_plasticity.numeric.errors.uncertainty import Estimate
from qk_dump.reader import HeadRows

Ints = npt.NDArray[np.int64]

INSIDE_LAST_BIN = "distant_from is inside the last bin of mass_by_distance"


@dataclass(frozen=True)
class HeadAttention:
    """Means over the tokens of a head; empty if the dump has no attention columns."""

    means: dict[str, Estimate] = field(default_factory=dict)  # columns of the table of heads
    buckets: Columns = field(default_factory=dict)  # rows of the table of attention

    @classmethod
    def of(
        cls, rows: HeadRows, weights: TokenWeights, group: Ints | None, distant_from: int
    ) -> HeadAttention:
        """Means over the queries with known attention; `group` (n,) is that of their texts."""
        attention = rows.attention
        if attention is None:
            return cls()
        known = np.flatnonzero(~np.isnan(attention.lse))
        if len(known) == 0:  # the texts with known attention are left out
            return cls()
        kept = attention[known]
        group = None if group is None else group[known]
        position, weight = rows.position[known], weights.of(known).weight
        largest_weight = float(weight.max())
        weight = weight / largest_weight  # exactly 1 if all are equal
        single = (kept.entropy, kept.sink_mass, kept.max_logit)
        entropy, sinks, largest = (values.astype(np.float64) for values in single)
        columns = {
            "attn_entropy": entropy,
            "attn_sink_mass": sinks,
            "attn_distant_mass": distant_mass(kept.mass_by_distance, distant_from),
            "attn_max_logit": largest,
            "attn_far_mass": far_mass(kept.mass_by_distance, sinks, position, distant_from),
        }
        means = {name: head_mean(values, weight, group) for name, values in columns.items()}
        masses = common_bins(kept.mass_by_distance)  # (n, 24)
        values = np.column_stack([entropy, sinks, largest, masses])
        found = bucket_means(values, weight, position, rows.bucket[known], group)
        return cls(means, _bucket_columns(found, largest_weight, group is not None))


def add_attention(values: HeadValues, means: dict[str, Estimate], why_no_errors: str) -> None:
    """Means of attention of the head, with errors."""
    why = INSIDE_LAST_BIN if means else NO_COLUMNS
    for name in ATTENTION_MEANS:
        mean = means.get(name)
        value = math.nan if mean is None else mean.value
        has_errors = mean is not None and mean.groups > 0
        values.add_estimate(name, value, mean if has_errors else None, why, why_no_errors)


def _bucket_columns(found: BucketMeans, unit: float, with_groups: bool) -> Columns:
    """Columns of the table of attention; a weight of 1 stands for `unit` tokens."""
    columns: Columns = {
        "q_bucket": found.bucket.tolist(),
        "q_position": found.position.tolist(),
        "n_queries": found.count.tolist(),
        "n_groups": (found.groups.astype(int) if with_groups else found.groups).tolist(),
    }
    single = len(BUCKET_MEANS)
    for place, name in enumerate(BUCKET_MEANS):
        columns[name] = found.mean[:, place].tolist()
        columns[f"{name}_se"] = found.error[:, place].tolist()
    for kind, table in (("", found.mean), ("_se", found.error)):
        for name, column in zip(MASS_COLUMNS, table[:, single:].T, strict=True):
            columns[f"{name}{kind}"] = column.tolist()
    columns["n_tokens"] = (found.weight * unit).tolist()
    return columns
