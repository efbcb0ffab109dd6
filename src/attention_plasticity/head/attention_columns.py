"""The attention of the queries of a head as table columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attention_plasticity.head.layer import NO_COLUMNS
from attention_plasticity.head.result import Columns
from attention_plasticity.head.values import HeadValues
from attention_plasticity.metrics import ATTENTION_MEANS, BUCKET_MEANS, MASS_COLUMNS
from attention_plasticity.numeric.attention_means import (
    bucket_means,
    common_bins,
    distant_mass,
    head_mean,
)
from attention_plasticity.numeric.errors.uncertainty import Estimate
from qk_dump.reader import HeadRows

Ints = npt.NDArray[np.int64]

INSIDE_LAST_BIN = "distant_from is inside the last bin of mass_by_distance"


@dataclass(frozen=True)
class HeadAttention:
    """Means over the queries of a head; empty if the dump has no attention columns."""

    means: dict[str, Estimate] = field(default_factory=dict)  # columns of the table of heads
    buckets: Columns = field(default_factory=dict)  # rows of the table of attention

    @classmethod
    def of(cls, rows: HeadRows, group: Ints | None, distant_from: int) -> HeadAttention:
        """Means over the queries with known attention; `group` (n,) is that of their texts."""
        attention = rows.attention
        if attention is None:
            return cls()
        known = np.flatnonzero(~np.isnan(attention.lse))
        if len(known) == 0:  # the texts with known attention are left out
            return cls()
        kept = attention[known]
        group = None if group is None else group[known]
        single = (kept.entropy, kept.sink_mass, kept.max_logit)
        entropy, sinks, largest = (values.astype(np.float64) for values in single)
        distant = distant_mass(kept.mass_by_distance, distant_from)
        columns = {
            "attn_entropy": entropy,
            "attn_sink_mass": sinks,
            "attn_distant_mass": distant,
            "attn_max_logit": largest,
        }
        means = {name: head_mean(values, group) for name, values in columns.items()}
        masses = common_bins(kept.mass_by_distance)  # (n, 24)
        values = np.column_stack([entropy, sinks, largest, masses])
        return cls(means, _bucket_columns(rows, known, values, group))


def add_attention(values: HeadValues, means: dict[str, Estimate], why_no_errors: str) -> None:
    """Means of attention of the head, with errors."""
    why = INSIDE_LAST_BIN if means else NO_COLUMNS
    for name in ATTENTION_MEANS:
        mean = means.get(name)
        value = math.nan if mean is None else mean.value
        has_errors = mean is not None and mean.groups > 0
        values.add_estimate(name, value, mean if has_errors else None, why, why_no_errors)


def _bucket_columns(
    rows: HeadRows, known: npt.NDArray[np.intp], values: npt.NDArray[np.float64], group: Ints | None
) -> Columns:
    found = bucket_means(values, rows.position[known], rows.bucket[known], group)
    columns: Columns = {
        "q_bucket": found.bucket.tolist(),
        "q_position": found.position.tolist(),
        "n_queries": found.count.tolist(),
        "n_groups": found.groups.tolist() if group is None else found.groups.astype(int).tolist(),
    }
    single = len(BUCKET_MEANS)
    for place, name in enumerate(BUCKET_MEANS):
        columns[name] = found.mean[:, place].tolist()
        columns[f"{name}_se"] = found.error[:, place].tolist()
    for kind, table in (("", found.mean), ("_se", found.error)):
        for name, column in zip(MASS_COLUMNS, table[:, single:].T, strict=True):
            columns[f"{name}{kind}"] = column.tolist()
    return columns
