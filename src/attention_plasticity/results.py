"""What comes out for one query head: rows of the tables, or the reason why there are none.

Plain values only, so that results travel as JSON between processes and into the run's records, and
so that the process which only collects them need not load the numeric libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class HeadResult:
    """Rows of the three tables for one query head, as plain values."""

    layer: int
    q_head: int
    k_head: int
    metrics: dict[str, Any]
    buckets: Columns
    components: Columns

    @property
    def bucket_plasticity(self) -> pd.DataFrame:
        """Plasticity per (query bucket, key bucket)."""
        return self._frame(self.buckets)

    @property
    def component_weights(self) -> pd.DataFrame:
        """Share of positional information per dimension."""
        return self._frame(self.components)

    def _frame(self, columns: Columns) -> pd.DataFrame:
        import pandas as pd

        size = len(next(iter(columns.values())))
        ids = {name: [self.metrics[name]] * size for name in ("layer", "q_head", "k_head")}
        return pd.DataFrame(ids | columns)


@dataclass(frozen=True)
class Failure:
    """A query head that could not be analysed, and why."""

    layer: int
    q_head: int
    k_head: int
    reason: str
