"""The result of one query head: its table rows, or the reason of its failure.

All values are plain Python values. They can be written as JSON, and the process that collects
results does not import the numeric libraries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Columns = dict[str, list[Any]]
MissingCells = dict[str, dict[str, int]]  # column → reason → number of cells


@dataclass(frozen=True)
class HeadResult:
    """Rows of the tables for one query head."""

    layer: int
    q_head: int
    k_head: int
    metrics: dict[str, Any]
    buckets: Columns
    components: Columns
    influences: Columns
    distances: Columns = field(default_factory=dict)  # only for `context` and `attended` pairs
    attention: Columns = field(default_factory=dict)  # only if the dump has attention columns
    bins: Columns = field(default_factory=dict)  # only if plasticity at one position is known
    roles: Columns = field(default_factory=dict)  # one row; only with attention columns
    words: Columns = field(default_factory=dict)  # only if the dump has tokens
    bands: Columns = field(default_factory=dict)  # only if the rotary embedding is known
    kernel: Columns = field(default_factory=dict)  # only if the rotary embedding is known
    drift: Columns = field(default_factory=dict)  # one row; only if texts are known
    points: Columns = field(default_factory=dict)  # only with points_per_head
    drift_influences: dict[str, list[float]] = field(default_factory=dict)  # column → 16 groups
    key_head: dict[str, Any] = field(default_factory=dict)  # counts for the row of its key head
    missing: dict[str, str] = field(default_factory=dict)  # column of `metrics` → why it is NaN
    missing_cells: MissingCells = field(default_factory=dict)  # of `buckets`
    missing_bins: MissingCells = field(default_factory=dict)  # of `bins`
    missing_drift: dict[str, str] = field(default_factory=dict)  # column of `drift` → why it is NaN
    missing_points: dict[str, str] = field(default_factory=dict)  # of `points`, in all rows

    @property
    def bucket_plasticity(self) -> pd.DataFrame:
        """Plasticity per (query bucket, key bucket)."""
        return self._frame(self.buckets)

    @property
    def component_weights(self) -> pd.DataFrame:
        """Fraction of positional information per dimension."""
        return self._frame(self.components)

    def _frame(self, columns: Columns) -> pd.DataFrame:
        import pandas as pd

        size = len(next(iter(columns.values())))
        ids = {name: [self.metrics[name]] * size for name in ("layer", "q_head", "k_head")}
        return pd.DataFrame(ids | columns)


@dataclass(frozen=True)
class Failure:
    """A query head that could not be analysed, and the reason."""

    layer: int
    q_head: int
    k_head: int
    reason: str
