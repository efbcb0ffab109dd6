"""Tables in the pages of the findings."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

NONE = "–"


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose other columns are numbers."""
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """A page with every table between its two markers."""
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(begin, 1)
        text = head + begin + "\n" + table + "\n\n" + end + rest.split(end, 1)[1]
    return text


def write_tables(document: Path, tables: Mapping[str, str]) -> None:
    """Put every table between its two markers in a page."""
    page = with_tables(document.read_text(encoding="utf-8"), tables)
    document.write_text(page, encoding="utf-8")
    print(document, file=sys.stderr)
