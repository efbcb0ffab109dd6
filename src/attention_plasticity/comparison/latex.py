"""The tables of a comparison in LaTeX, for papers of two columns. Only booktabs is needed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence

from attention_plasticity.comparison.cautions import Concerned, texts_about
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.drawn import sample_sentences
from attention_plasticity.comparison.latex_layout import (
    Layout,
    is_long_text,
    layout_of,
    width_of,
)
from attention_plasticity.comparison.runs import main_of
from attention_plasticity.comparison.tables import (
    OTHER_HEADS,
    UNEQUAL,
    Cell,
    Line,
    WrittenTable,
    written_tables,
)
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from attention_plasticity.tables.names import clean

PACKAGE = r"% in the preamble: \usepackage{booktabs}"
_FIFTHS = ", means in the first and the last fifth of the longest text, and the drop between them"
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
_WIDEST_WORD = 11.0  # digits; fits the column of names
_BREAK, _RARE_BREAK = r"\allowbreak{}", r"\penalty500{}"  # after a sign, and inside a word
_INDENT = 2.0  # digits, of a type of layers


def comparison_latex(data: ComparisonData) -> str:
    """Floating tables: means and differences of each kind of plasticity, and correlations."""
    sample, main = sample_sentences(data), main_of(data.table)
    parts = [PACKAGE]
    for table in written_tables(data):
        captions = {
            "means": f"Plasticity {table.shown.words}: mean over heads"
            f"{_FIFTHS if table.shown.fifths else ''}.",
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
    layout = layout_of(table)
    kind = "table*" if layout.is_wide else "table"
    lines = [rf"\begin{{{kind}}}", r"\centering\sloppy", rf"\caption{{{_breakable(caption)}}}"]
    lines += [rf"\label{{tab:{label}}}", r"\smallskip", r"\small"]
    lines.append(r"\setlength{\tabcolsep}{4pt}")
    for number, columns in enumerate(layout.blocks):
        lines += ["", r"\medskip"] if number else []
        lines += _tabular(table, layout, columns)
    if below := [note for note in (table.note, *notes) if note]:
        lines += ["", r"\medskip", r"\begin{minipage}{\linewidth}", r"\footnotesize\raggedright"]
        lines += [rf"{_breakable(clean(note))}\par" for note in below]
        lines.append(r"\end{minipage}")
    return "\n".join([*lines, rf"\end{{{kind}}}"]) + "\n"


def _tabular(table: WrittenTable, layout: Layout, columns: Sequence[int]) -> Iterable[str]:
    """The lines of a tabular with some columns. Long names are broken inside their column."""
    of_column = {place: [line.cells[place] for line in table.lines] for place in columns}
    texts = {place for place, cells in of_column.items() if any(cell.is_text for cell in cells)}
    long = {place for place, cells in of_column.items() if is_long_text(cells)}
    kind_of = dict.fromkeys(columns, "r") | dict.fromkeys(texts, "l")
    kind_of |= dict.fromkeys(long, rf"p{{{layout.text_share}\linewidth}}")
    kinds = "".join(kind_of[place] for place in columns)
    yield rf"\begin{{tabular}}{{p{{{layout.name_share}\linewidth}}{kinds}}}"
    yield r"\toprule"
    headings = (_heading(layout.headings[place], place in texts) for place in columns)
    yield _row([_escaped(table.narrow_headings[0]), *headings])
    yield r"\midrule"
    for line in table.lines:
        yield from _rows(line, layout, columns, long)
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _rows(
    line: Line, layout: Layout, columns: Sequence[int], long: Collection[int]
) -> Iterable[str]:
    """One row; or two if errors or intervals are below the numbers and the name has one line."""
    cells = [line.cells[place] for place in columns]
    breaks = layout.may_break(line.part or line.name, _INDENT if line.part else 0.0)
    name = rf"\quad {_escaped(line.part)}" if line.part else _breakable(line.name)
    if breaks:
        indent = r"\leftskip=1em " if line.part else ""
        name = _paragraph(line.part or line.name, indent)
    numbers = [
        _paragraph(cell.value) if place in long and cell.is_text else _value(cell)
        for place, cell in zip(columns, cells, strict=True)
    ]
    below = [
        rf"{{\scriptsize {cell.below.translate(_NUMBERS)}}}" if cell.below else "" for cell in cells
    ]
    if breaks:  # a second row would begin below the last line of the name
        numbers = [_stacked("t", one) for one in zip(numbers, below, strict=True)]
    end = r"\tabularnewline" if columns[-1] in long else r"\\"  # `\raggedright` changes the latter
    yield _row([name, *numbers], end)
    if any(below) and not breaks:
        yield _row(["", *below])


def _value(cell: Cell) -> str:
    return _escaped(cell.value) if cell.is_text else (cell.value + cell.marks).translate(_NUMBERS)


def _heading(lines: Sequence[str], is_left: bool) -> str:
    texts = [_escaped(line) for line in lines]
    text = _stacked("b", texts)
    return rf"\multicolumn{{1}}{{l}}{{{text}}}" if is_left else text


def _stacked(place: str, texts: Sequence[str]) -> str:
    """Texts below each other in a cell, aligned at their top (`t`) or at their bottom (`b`)."""
    found = [text for text in texts if text]
    if len(found) < 2:
        return "".join(found)
    return rf"\begin{{tabular}}[{place}]{{@{{}}r@{{}}}}" + r"\\".join(found) + r"\end{tabular}"


def _paragraph(text: str, begin: str = "") -> str:
    """Text for a cell with several lines. Its words are broken only if they are too wide."""
    words = (_with_breaks(word, _WIDEST_WORD) for word in text.split(" "))
    return rf"\raggedright {begin}{' '.join(words)}"


def _row(cells: Iterable[str], end: str = r"\\") -> str:
    return f"{' & '.join(cells)} {end}"


def _escaped(text: str) -> str:
    """Text with the special characters of LaTeX escaped."""
    return text.translate(_TEXT)


def _breakable(text: str) -> str:
    """Escaped text for a paragraph. Long words, such as names of models, can be broken."""
    return " ".join(_with_breaks(word) for word in text.split(" "))


def _with_breaks(word: str, widest: float = math.inf) -> str:
    """A long or wide word with breaks after its signs, and inside parts without signs."""
    if len(word) <= _LONG_WORD and width_of(word) <= widest:
        return _escaped(word)
    parts = re.findall(r"[^\W_]*[\W_]|[^\W_]+", word)
    pieces = (part[at : at + _PIECE] for part in parts for at in range(0, len(part), _PIECE))
    found = [_escaped(piece) + (_RARE_BREAK if piece[-1].isalnum() else _BREAK) for piece in pieces]
    return "".join(found).removesuffix(_RARE_BREAK).removesuffix(_BREAK)
