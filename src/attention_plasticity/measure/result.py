"""The results of a key head and its query heads: rows of tables, or reasons of failures.

All values are plain Python values. They can be written as JSON, and the process that collects
results does not import the numeric libraries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attention_plasticity.metrics import LEFT_OUT
from qk_toolkit.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from attention_plasticity.estimate.quantity import Quantity

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class HeadResult:
    """Rows of the tables for one query head."""

    layer: int
    q_head: int
    k_head: int
    metrics: dict[str, Any]  # the row of head_metrics.csv
    tables: dict[str, Columns]  # kind of table → columns; a table without rows is left out
    missing: dict[str, dict[str, str]] = field(default_factory=dict)  # table → column → reason
    unknown_tokens: int = 0  # token ids of the rows without a text

    @property
    def bucket_plasticity(self) -> pd.DataFrame:
        """Plasticity per (query bucket, key bucket)."""
        return self._frame("bucket_plasticity")

    @property
    def component_weights(self) -> pd.DataFrame:
        """Fraction of positional information per dimension."""
        return self._frame("component_weights")

    def _frame(self, kind: str) -> pd.DataFrame:
        import pandas as pd

        if kind not in self.tables:
            raise ConfigError(f"{kind}: was not computed, because {LEFT_OUT}")
        columns = self.tables[kind]
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
    traceback: str = ""  # of an error of this program


@dataclass(frozen=True)
class KeyHeadRow:
    """The row of a key head."""

    values: dict[str, Any]
    quantities: dict[str, Quantity]
    missing: dict[str, str] = field(default_factory=dict)  # column → reason


@dataclass(frozen=True)
class GroupResult:
    """A key head with its query heads: all rows of the tables, and what failed."""

    layer: int
    k_head: int
    heads: list[HeadResult]  # by query head, ascending
    key_head: KeyHeadRow | None  # None: no query head has known texts
    failures: list[Failure]
