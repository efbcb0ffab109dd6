"""The tables of a comparison as CSV and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from attention_plasticity.comparison.cells import (
    CORRELATION_HEADINGS,
    CORRELATIONS_NOTE,
    DIFFERENCE_HEADINGS,
    difference_cells,
    differences_note,
    errors_note,
    headings,
    value_cells,
)
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.runs import kinds_of, main_of
from attention_plasticity.comparison.scores import correlation_values
from attention_plasticity.tables.main_plasticity import PlasticityColumns
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


def as_markdown(compared: pd.DataFrame, shown: PlasticityColumns | None = None) -> str:
    """The table of means in GitHub Markdown; by default of the main plasticity."""
    shown = shown or main_of(compared)
    rows = value_cells(compared, shown, with_errors=True)
    return _table(list(headings(shown).values()), rows)


def comparison_markdown(data: ComparisonData) -> str:
    """All tables in GitHub Markdown, and the notes as a list."""
    parts = [part for shown in kinds_of(data.table) for part in _means(data, shown)]
    if data.relations:
        rows = [
            [clean(found.score), *correlation_values(found), str(found.models)]
            for found in data.relations
        ]
        name = main_of(data.table).name
        parts.append(_paragraph(f"Correlation of the drop of {name} with scores:"))
        parts += [_table(CORRELATION_HEADINGS, rows), _paragraph(CORRELATIONS_NOTE)]
    listed = "".join(f"- {_escaped(clean(caution.text))}\n" for caution in data.cautions)
    if listed:
        parts.append(f"Notes:\n\n{listed}")
    return "\n".join(filter(None, parts))


def _means(data: ComparisonData, shown: PlasticityColumns) -> Iterator[str]:
    """The means and the differences of one kind of plasticity."""
    yield _paragraph(f"Plasticity {shown.words}:")
    yield as_markdown(data.table, shown)
    yield _paragraph(errors_note(data.table, shown))
    lines = difference_cells(data.differences, shown)
    if lines:
        rows = [[line.label, line.plasticity, line.drop, line.texts] for line in lines]
        yield _paragraph(f"Plasticity {shown.words}, difference from {lines[0].minus}:")
        yield _table(DIFFERENCE_HEADINGS, rows)
        yield _paragraph(differences_note(lines))


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
