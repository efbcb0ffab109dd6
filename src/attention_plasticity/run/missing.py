"""Missing values of a run and their reasons, for run.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attention_plasticity.measure.result import HeadResult
from attention_plasticity.tables.missing import Head, by_layer

if TYPE_CHECKING:
    from attention_plasticity.measure.key_heads import KeyHeadRow


@dataclass(frozen=True)
class MissingValues:
    """Columns of a table whose values are missing in the same heads for the same reason."""

    table: str  # kind of the table, as in `tables` of run.json
    columns: list[str]
    reason: str
    heads: int  # number of heads
    where: dict[str, str]  # layer → query heads: {"0": "0-2,5"}; key heads in the table key_heads


class MissingSums:
    """Collects the missing values of the heads of a run."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, str, str], list[Head]] = {}  # by table, column and reason

    def add(self, result: HeadResult) -> None:
        """Add a head."""
        for table, reasons in result.missing.items():
            self._add(table, reasons, (result.layer, result.q_head))

    def add_key_head(self, row: KeyHeadRow) -> None:
        """Add a key head."""
        self._add("key_heads", row.missing, (row.layer, row.k_head))

    def _add(self, table: str, reasons: Mapping[str, str], head: Head) -> None:
        for column, reason in reasons.items():
            self._heads.setdefault((table, column, reason), []).append(head)

    @property
    def found(self) -> list[MissingValues]:
        """The missing values. Columns with the same heads and the same reason are joined."""
        joined: dict[tuple[str, str, tuple[Head, ...]], list[str]] = {}
        for (table, column, reason), heads in self._heads.items():
            joined.setdefault((table, reason, tuple(heads)), []).append(column)
        return [
            MissingValues(table, columns, reason, len(heads), by_layer(heads))
            for (table, reason, heads), columns in joined.items()
        ]
