"""Layouts of tables in LaTeX, from a narrow float to columns in several parts."""

from __future__ import annotations

import pytest

from attention_plasticity.comparison.latex import latex_float
from attention_plasticity.comparison.latex_layout import heading_lines, layout_of
from attention_plasticity.comparison.tables import Cell, Line, WrittenTable
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION

NUMBER = Cell("0.123")
INTERVAL = Cell("-0.123", "[-0.234, +0.345]")


def table_of(cell: Cell, *headings: str, name: str = "a") -> WrittenTable:
    line = Line(name, "", (cell,) * len(headings))
    return WrittenTable("study", AT_ONE_POSITION, ("model", *headings), (line,))


@pytest.mark.parametrize(
    ("cell", "headings", "is_wide", "share", "blocks"),
    [
        (NUMBER, ("x",) * 5, False, 0.25, [5]),
        (NUMBER, ("x",) * 6, True, 0.25, [6]),
        (NUMBER, ("plasticity at one position",) * 6, True, 0.25, [6]),
        (NUMBER, ("x",) * 12, True, 0.18, [12]),
        (INTERVAL, ("x",) * 7, True, 0.18, [5, 2]),
    ],
)
def test_the_first_layout_that_fits_is_taken(
    cell: Cell, headings: tuple[str, ...], is_wide: bool, share: float, blocks: list[int]
) -> None:
    table = table_of(cell, *headings)
    found = layout_of(table)
    assert (found.is_wide, found.name_share) == (is_wide, share)
    assert [len(columns) for columns in found.blocks] == blocks
    assert [place for columns in found.blocks for place in columns] == [*range(len(headings))]
    text = latex_float(table, "caption", "label", [])
    assert text.count(r"\toprule") == len(blocks)
    assert text.count(r"\caption") == 1


def test_headings_are_broken_between_words() -> None:
    assert heading_lines("plasticity at one position", 5.0) == ("plasticity", "at one", "position")
    assert heading_lines("plasticity at one position", 40.0) == ("plasticity at one position",)


def test_intervals_stay_below_their_numbers_if_a_name_has_several_lines() -> None:
    name = "a name of a model that is longer than its column"
    text = latex_float(table_of(INTERVAL, "x", name=name), "caption", "label", [])
    assert r"\begin{tabular}[t]{@{}r@{}}$-$0.123\\{\scriptsize [$-$0.234, $+$0.345]}" in text
    short = latex_float(table_of(INTERVAL, "x"), "caption", "label", [])
    assert "a & $-$0.123 \\\\\n & {\\scriptsize [$-$0.234, $+$0.345]} \\\\\n" in short


def test_hyphens_of_texts_are_no_minus_signs_and_long_texts_have_lines() -> None:
    short, long = (
        latex_float(table_of(Cell(text, is_text=True), "x"), "caption", "label", [])
        for text in ("one-two", "a-kind-with-a-very-long-name")
    )
    assert "a & one{-}two \\\\" in short
    assert r"\begin{tabular}{p{0.25\linewidth}l}" in short
    assert r"\begin{tabular}{p{0.25\linewidth}p{0.27\linewidth}}" in long
    assert r"a & \raggedright a{-}\allowbreak{}kind{-}\allowbreak{}with" in long
    assert r"name \tabularnewline" in long
