"""The tables of a comparison as CSV and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pandas as pd

from attention_plasticity.comparison.cells import (
    CORRELATION_HEADINGS,
    CORRELATIONS_NOTE,
    DIFFERENCE_HEADINGS,
    HEADINGS,
    difference_cells,
    differences_note,
    errors_note,
    value_cells,
)
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.scores import correlation_values
from attention_plasticity.tables.names import clean

_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>|~&$#@!]")  # special characters of GitHub Markdown
_FORMULA = ("=", "+", "-", "@")  # a spreadsheet reads text with these first characters as a formula


def as_csv(table: pd.DataFrame) -> str:
    """CSV with full precision and original column names. Texts are never formulas."""
    texts = [name for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    escaped = {name: [escape_formula(str(text)) for text in table[name]] for name in texts}
    return table.assign(**escaped).to_csv(index=False, na_rep="nan", lineterminator="\n")


def escape_formula(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would read as a formula."""
    line = clean(text)
    return f"'{line}" if line.startswith(_FORMULA) else line


def as_markdown(compared: pd.DataFrame) -> str:
    """The table of means in GitHub Markdown."""
    rows = value_cells(compared, with_errors=True)
    return _table(list(HEADINGS.values()), rows)


def comparison_markdown(data: ComparisonData) -> str:
    """All tables in GitHub Markdown, and the notes as a list."""
    parts = [as_markdown(data.table), _paragraph(errors_note(data.table))]
    lines = difference_cells(data.differences)
    if lines:
        rows = [[line.label, line.plasticity, line.drop, line.texts] for line in lines]
        parts.append(_paragraph(f"Difference from {lines[0].minus}:"))
        parts += [_table(DIFFERENCE_HEADINGS, rows), _paragraph(differences_note(lines))]
    if data.relations:
        rows = [
            [clean(found.score), *correlation_values(found), str(found.models)]
            for found in data.relations
        ]
        parts.append(_paragraph("Correlation of the drop with scores:"))
        parts += [_table(CORRELATION_HEADINGS, rows), _paragraph(CORRELATIONS_NOTE)]
    listed = "".join(f"- {_escaped(clean(caution.text))}\n" for caution in data.cautions)
    if listed:
        parts.append(f"Notes:\n\n{listed}")
    return "\n".join(filter(None, parts))


def _paragraph(text: str | None) -> str:
    return f"{_escaped(text)}\n" if text else ""


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(headings), _row(["---", *["---:"] * (len(headings) - 1)])]
    lines += [_row(map(_escaped, cells)) for cells in rows]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", text)
