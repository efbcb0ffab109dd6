"""What the tables of the findings share: cells, and names of heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from attention_plasticity.run.head_means import MeanEstimate


def estimate(mean: MeanEstimate) -> str:
    """A mean over heads with its standard error."""
    return f"{mean.value:.3f} ± {mean.standard_error:.3f}"


def corrected_cell(head: Mapping[Any, Any], name: str) -> str:
    """A value of one head, corrected for bias, with its standard error."""
    return f"{head[name] - head[f'{name}_bias']:.3f} ± {head[f'{name}_se']:.3f}"


def head_name(head: Mapping[Any, Any]) -> str:
    """`layer.head`."""
    return f"{head['layer']:.0f}.{head['q_head']:.0f}"


def rank_correlation(one: pd.Series, other: pd.Series) -> float:
    """Spearman's correlation of two columns with the same index."""
    return float(one.corr(other, method="spearman"))
