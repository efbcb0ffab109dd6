"""Missing values of a run and their reasons, for run.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from attention_plasticity.measure.result import HeadResult
from attention_plasticity.metrics import METRICS
from qk_toolkit.formatting import index_ranges
from qk_toolkit.settings import index_list

if TYPE_CHECKING:
    from attention_plasticity.measure.key_heads import KeyHeadRow

Head = tuple[int, int]  # (layer, q_head), or (layer, k_head) in the table of key heads


@dataclass(frozen=True)
class MissingValues:
    """Columns of a table whose values are missing in the same heads for the same reason."""

    table: str  # kind of the table, as in `tables` of run.json
    columns: list[str]
    reason: str
    heads: int  # number of heads
    where: dict[str, str]  # layer → query heads: {"0": "0-2,5"}; key heads in the table key_heads

    @property
    def metrics(self) -> list[str]:
        """The columns, without errors of columns that are missing too."""
        own = {name: METRICS[name].error_of for name in self.columns if name in METRICS}
        return [name for name in self.columns if own.get(name) not in self.columns]


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
            MissingValues(table, columns, reason, len(heads), _by_layer(heads))
            for (table, reason, heads), columns in joined.items()
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
