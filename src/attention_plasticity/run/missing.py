"""Missing values of a run and their reasons, for run.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from attention_plasticity.head.result import HeadResult, MissingCells
from attention_plasticity.metrics import HEAD_METRICS, METRICS
from attention_plasticity.run.key_heads import KeyHeadRow
from qk_toolkit.formatting import index_ranges
from qk_toolkit.settings import index_list

Head = tuple[int, int]  # (layer, q_head)

NOT_RECORDED = "the head was analysed by an earlier version, which did not record the reason"


@dataclass(frozen=True)
class MissingValues:
    """Columns of a table whose values are missing in the same heads for the same reason."""

    table: str  # kind of the table, as in `tables` of run.json
    columns: list[str]
    reason: str
    heads: int  # number of heads
    values: int  # number of missing values in every column
    where: dict[str, str]  # layer → query heads: {"0": "0-2,5"}; key heads in the table key_heads

    @property
    def metrics(self) -> list[str]:
        """The columns, without errors and biases of columns that are missing too."""
        own = {name: METRICS[name].error_of for name in self.columns if name in METRICS}
        return [name for name in self.columns if own.get(name) not in self.columns]


class MissingSums:
    """Collects the missing values of the heads of a run."""

    def __init__(self, *, with_bins: bool = True) -> None:
        """`with_bins`: whether the run has the table of bins."""
        self._with_bins = with_bins
        self._heads: dict[tuple[str, str, str], list[Head]] = {}  # by table, column and reason
        self._values: dict[tuple[str, str, str], int] = {}

    def add(self, result: HeadResult) -> None:
        """Add a head."""
        head = result.layer, result.q_head
        for metric in HEAD_METRICS.columns:
            if metric.is_missing(result.metrics[metric.column]):
                reason = result.missing.get(metric.column, NOT_RECORDED)
                self._add("head_metrics", metric.column, reason, head, 1)
        self._add_cells("bucket_plasticity", result.missing_cells, head)
        if self._with_bins:
            self._add_cells("bins", result.missing_bins, head)
        for column, reason in result.missing_drift.items():
            self._add("drift", column, reason, head, 1)
        for column, reason in result.missing_points.items():
            self._add("points", column, reason, head, len(result.points[column]))

    def add_key_head(self, row: KeyHeadRow) -> None:
        """Add a key head."""
        for column, reason in row.missing.items():
            self._add("key_heads", column, reason, (row.layer, row.k_head), 1)

    def _add_cells(self, table: str, missing: MissingCells, head: Head) -> None:
        for column, reasons in missing.items():
            for reason, cells in reasons.items():
                self._add(table, column, reason, head, cells)

    def _add(self, table: str, column: str, reason: str, head: Head, values: int) -> None:
        key = table, column, reason
        self._heads.setdefault(key, []).append(head)
        self._values[key] = self._values.get(key, 0) + values

    @property
    def found(self) -> list[MissingValues]:
        """The missing values. Columns with the same heads and the same reason are joined."""
        joined: dict[tuple[Any, ...], list[str]] = {}
        for key, heads in self._heads.items():
            table, column, reason = key
            joined.setdefault((table, reason, tuple(heads), self._values[key]), []).append(column)
        return [
            MissingValues(table, columns, reason, len(heads), values, _by_layer(heads))
            for (table, reason, heads, values), columns in joined.items()
        ]


def missing_records(found: Iterable[MissingValues]) -> list[dict[str, Any]]:
    """The missing values as run.json has them."""
    return [asdict(missing) for missing in found]


def heads_of(where: Mapping[str, str]) -> Iterator[Head]:
    """The heads of `where`. Raises a `ValueError` if the text is not as this module writes it."""
    for layer, heads in where.items():
        for number in index_list(heads):
            yield int(layer), number


def _by_layer(heads: Iterable[Head]) -> dict[str, str]:
    by_layer = groupby(sorted(heads), key=lambda head: head[0])
    return {
        str(layer): index_ranges(number for _, number in members) for layer, members in by_layer
    }
