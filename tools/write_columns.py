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
_DUMP_HEADER = "| column | type | values | meaning |\n|---|---|---|---|"
_HEADER = "| column | meaning |\n|---|---|"
_MOST_NAMES = 8


def with_columns(page: str) -> str:
    """The page with the tables of columns as they are now."""
    page = _with_part(page, "a dump", [_DUMP_HEADER, *map(_dump_row, TABLE)])
    told: set[tuple[str, str]] = set()
    for kind, table in TABLES.items():
        own = [one for one in _listed(table) if (one.column, _meaning(one)) not in told]
        again = [f"`{one.column}`" for one in _listed(table) if one not in own]
        lines = [f"A row per {table.rows}.\n", _HEADER, *_rows(own)]
        if again:
            lines.append(f"\nAs in tables above: {', '.join(again)}.")
        page = _with_part(page, kind, lines)
        told |= {(one.column, _meaning(one)) for one in own}
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
    null = f"; null: {column.null}" if column.null not in ("", NOT_KNOWN) else ""
    cells = (_written(column), column.law, f"{column.meaning}{null}")
    return f"| `{column.name}` | {' | '.join(cells)} |"


def _written(column: Column) -> str:
    if column.name == VECTOR:
        return "d float32 or float16"
    if column.name == RECEIVED:
        return "g float32"
    if column.name == MASSES:
        return f"{MASS_BINS} float32"
    return {"float": "float32", "double": "float64"}.get(str(column.type), str(column.type))


def _listed(table: Table) -> list[Metric]:
    """The columns without those of an error and before RoPE, if what they belong to is there."""
    own = [one for one in table.columns if one.column not in IDS]
    endings = ("_se", BEFORE_ROPE)
    return [one for one in own if not _belongs_to(one, endings) & {*table.names}]


def _rows(columns: Sequence[Metric]) -> Iterator[str]:
    """Columns with the same meaning share a row if they follow each other."""
    for meaning, members in groupby(columns, key=_meaning):
        yield _row(list(members), meaning.replace("|", r"\|"))


def _belongs_to(metric: Metric, endings: Sequence[str]) -> set[str]:
    """The names without one of the endings."""
    name = metric.column
    return {name.removesuffix(ending) for ending in endings if name.endswith(ending)}


def _row(metrics: Sequence[Metric], meaning: str) -> str:
    """Columns and their meaning."""
    names = [f"**`{one.column}`**" if one.error else f"`{one.column}`" for one in metrics]
    if len(names) > _MOST_NAMES:
        names = [f"{names[0]} … {names[-1]}"]
    return f"| {', '.join(names)} | {meaning} |"


def _meaning(metric: Metric) -> str:
    nan = f"`nan`: {metric.nan}" if metric.nan else ""
    return "; ".join(filter(None, (metric.meaning, metric.note, nan)))


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_columns(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
