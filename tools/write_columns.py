"""Write the tables of columns of docs/data-format.md.

Those of results come from `attention_plasticity.metrics`, that of a dump from `qk_dump.columns`. A
part of the page between `<!-- columns of KIND: begin -->` and `<!-- columns of KIND: end -->` is
replaced by the table of columns of this kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from attention_plasticity.metric import Metric, Table
from attention_plasticity.metrics import BEFORE_ROPE, IDS, TABLES
from qk_dump.columns import MASS_BINS, MASSES, NOT_KNOWN, RECEIVED, TABLE, VECTOR, Column

PAGE = Path(__file__).parents[1] / "docs" / "data-format.md"
_DUMP_HEADER = "| column | rows | type | values | meaning |\n|---|---|---|---|---|"
_HEADER = "| column | meaning |\n|---|---|"
_MOST_NAMES = 8


def with_columns(page: str) -> str:
    """The page with the tables of columns as they are now."""
    page = _with_part(page, "a dump", [_DUMP_HEADER, *map(_dump_row, TABLE)])
    for kind, table in TABLES.items():
        page = _with_part(page, kind, [f"A row per {table.rows}.\n", _HEADER, *_rows(table)])
    return page


def _with_part(page: str, kind: str, lines: Sequence[str]) -> str:
    """The page with other lines in the part of this kind."""
    begin, end = f"<!-- columns of {kind}: begin -->", f"<!-- columns of {kind}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{PAGE}: has no part {begin} … {end}")
    return "\n".join([f"{before}{begin}", *lines, f"{end}{after}"])


def _dump_row(column: Column) -> str:
    """A column of a dump: the type that is written, the values, and the meaning."""
    rows = {"q": "queries", "k": "keys", "qk": "all"}[column.kind]
    null = f"; null: {column.null}" if column.null not in ("", NOT_KNOWN) else ""
    cells = (rows, _written(column), column.law, f"{column.meaning}{null}")
    return f"| `{column.name}` | {' | '.join(cells)} |"


def _written(column: Column) -> str:
    if column.name == VECTOR:
        return "d float32 or float16"
    if column.name == RECEIVED:
        return "g float32"
    if column.name == MASSES:
        return f"{MASS_BINS} float32"
    return {"float": "float32", "double": "float64"}.get(str(column.type), str(column.type))


def _rows(table: Table) -> Iterator[str]:
    pairs = _before_rope(table)
    later = {name for names in pairs.values() for name in names}
    own = [metric for metric in table.columns if metric.column not in {*IDS, *later}]
    for _, members in groupby(own, key=lambda metric: _row_of(metric, table)):
        metrics = list(members)
        first, names = metrics[0], [metric.column for metric in metrics]
        names += pairs.get(first.column, [])
        several = [metric for metric in metrics if metric.error_of is None]
        yield _row(names, first.label if len(several) == 1 else "", _meaning(first))


def _before_rope(table: Table) -> dict[str, list[str]]:
    """Columns before RoPE and their errors, by the same column as vectors enter the attention."""
    found: dict[str, list[str]] = {}
    for metric in table.columns:
        name = (metric.error_of or metric.column).removesuffix(BEFORE_ROPE)
        if name in table.names and name != (metric.error_of or metric.column):
            found.setdefault(name, []).append(metric.column)
    return found


def _row_of(metric: Metric, table: Table) -> str:
    """Columns with the same key are in one row, if they follow each other.

    The error of a metric is in its row. Columns with the same meaning, such as those of the groups
    of texts, share a row.
    """
    if metric.error_of is not None:
        return table.columns[table.names.index(metric.error_of)].meaning
    return metric.meaning


def _row(names: list[str], name: str, meaning: str) -> str:
    """Columns and their meaning, with the name on figures and the page if it tells more."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) > _MOST_NAMES:
        with_errors = 1 + names[-1].endswith("_se")
        ends = (", ".join(part) for part in (quoted[:with_errors], quoted[-with_errors:]))
        quoted = [" … ".join(ends)]
    is_told = name in meaning or name == names[0].replace("_", " ")
    told = meaning if is_told else f"{name}: {meaning}"
    return f"| {', '.join(quoted)} | {told.replace('|', chr(92) + '|')} |"


def _meaning(metric: Metric) -> str:
    nan = f"`nan`: {metric.nan}" if metric.nan else ""
    return "; ".join(filter(None, (metric.meaning, metric.note, nan)))


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_columns(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
