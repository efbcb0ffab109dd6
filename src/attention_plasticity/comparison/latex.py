"""The tables of a comparison in LaTeX, for papers of two columns. Only booktabs is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from attention_plasticity.comparison.cautions import Concerned, texts_about
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.drawn import sample_sentences
from attention_plasticity.comparison.runs import main_of
from attention_plasticity.comparison.tables import (
    OTHER_HEADS,
    UNEQUAL,
    WrittenTable,
    written_tables,
)
from attention_plasticity.metrics import FIFTH_NAMES
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from attention_plasticity.tables.names import clean

PACKAGE = r"% in the preamble: \usepackage{booktabs}"
_MEANS = (
    "mean over heads, mean in each fifth of the context, and drop from the first to the last fifth."
)
_LABELS = {
    "means": "attention-plasticity",
    "differences": "plasticity-differences",
    "key_heads": "key-heads",
    "correlations": "plasticity-correlations",
}
_CAUTIONS: dict[str, tuple[Concerned, ...]] = {
    "means": ("means",),
    "differences": ("means", "differences"),
    "key_heads": ("means",),
    "correlations": ("correlations", "means"),
}
_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "-": "{-}",  # two hyphens would become a dash
    "[": "{[}",  # would be read as an argument of a line end
    "*": "{*}",
    "–": "--",
    "…": r"\ldots{}",
    "·": r"\textperiodcentered{}",
    "±": r"$\pm$",
    UNEQUAL: r"\dag{}",
    OTHER_HEADS: r"\ddag{}",
}
_TEXT = str.maketrans({**_SPECIAL})
_NUMBERS = str.maketrans({**_SPECIAL, "-": "$-$", "+": "$+$", "[": "["})  # true minus signs
_LONG_WORD, _PIECE = 16, 6  # characters; six of the widest fit the column of names
_MOST_IN_A_COLUMN = 39.0  # characters of numbers, with their narrow signs, beside the names
_GAP = 1.7  # characters between two columns
_SMALL = 0.88  # width of the small numbers relative to the others


def comparison_latex(data: ComparisonData) -> str:
    """Floating tables: means and differences of each kind of plasticity, and correlations."""
    sample, main = sample_sentences(data), main_of(data.table)
    parts = [PACKAGE]
    for table in written_tables(data):
        captions = {
            "means": f"Plasticity {table.shown.words}: {_MEANS}",
            "differences": f"Differences of {table.shown.name} from {table.minus}.",
            "key_heads": "Means over key heads.",
            "correlations": f"Correlation of the drop of {table.shown.name} with benchmark scores.",
        }
        label = _LABELS[table.kind]
        if table.shown is not main:
            label += "-position" if table.shown is AT_ONE_POSITION else "-bucket"
        notes = texts_about(data.cautions, *_CAUTIONS[table.kind])
        parts.append(latex_float(table, f"{captions[table.kind]} {sample}", label, notes))
    return "\n".join(parts)


def latex_float(table: WrittenTable, caption: str, label: str, notes: Sequence[str]) -> str:
    """A floating table: caption, label, tabular, and notes in small text.

    It spans both columns of the article unless its numbers fit one.
    """
    kind = "table" if _numbers_width(table) <= _MOST_IN_A_COLUMN else "table*"
    lines = [rf"\begin{{{kind}}}", r"\centering\sloppy", rf"\caption{{{_breakable(caption)}}}"]
    lines += [rf"\label{{tab:{label}}}", r"\smallskip", r"\small"]
    lines += [r"\setlength{\tabcolsep}{4pt}", *_tabular(table)]
    if below := [note for note in (table.note, *notes) if note]:
        lines += ["", r"\medskip", r"\begin{minipage}{\linewidth}", r"\footnotesize\raggedright"]
        lines += [rf"{_breakable(clean(note))}\par" for note in below]
        lines.append(r"\end{minipage}")
    return "\n".join([*lines, rf"\end{{{kind}}}"]) + "\n"


def _numbers_width(table: WrittenTable) -> float:
    """The width of the columns of numbers, with their gaps, in characters."""
    rows = [
        [(cell.value + cell.marks, cell.below) for cell in cells] for _, _, cells in table.lines
    ]
    return sum(
        _GAP + max(len(heading), *(max(len(a), _SMALL * len(b)) for a, b in column))
        for heading, column in zip(table.narrow_headings[1:], zip(*rows, strict=True), strict=True)
    )


def _tabular(table: WrittenTable) -> Iterable[str]:
    """The lines of a tabular. Long names of runs and scores are broken inside their column."""
    columns = len(table.headings) - 1
    yield rf"\begin{{tabular}}{{p{{0.25\linewidth}}{'r' * columns}}}"
    yield r"\toprule"
    fifths = [place for place, name in enumerate(table.headings) if name in FIFTH_NAMES]
    if fifths:
        first, last = fifths[0], fifths[-1]
        span = rf"\multicolumn{{{len(fifths)}}}{{c}}{{part of the context (\%)}}"
        yield "& " * first + span + " &" * (columns - last) + r" \\"
        yield rf"\cmidrule(lr){{{first + 1}-{last + 1}}}"
    yield _row(map(_escaped, table.narrow_headings))
    yield r"\midrule"
    for name, part, cells in table.lines:
        numbers = ((cell.value + cell.marks).translate(_NUMBERS) for cell in cells)
        yield _row([rf"\quad {_escaped(part)}" if part else _breakable(name), *numbers])
        if any(cell.below for cell in cells):
            small = (cell.below.translate(_NUMBERS) for cell in cells)
            yield _row(["", *(rf"{{\scriptsize {text}}}" if text else "" for text in small)])
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    """Text with the special characters of LaTeX escaped."""
    return text.translate(_TEXT)


def _breakable(text: str) -> str:
    """Escaped text for a paragraph. Long words, such as names of models, can be broken."""
    return " ".join(_with_breaks(word) for word in text.split(" "))


def _with_breaks(word: str) -> str:
    """A long word with breaks after its signs, and inside parts without signs."""
    if len(word) <= _LONG_WORD:
        return _escaped(word)
    parts = re.findall(r"[^\W_]*[\W_]|[^\W_]+", word)
    pieces = (part[at : at + _PIECE] for part in parts for at in range(0, len(part), _PIECE))
    return r"\allowbreak{}".join(map(_escaped, pieces))
