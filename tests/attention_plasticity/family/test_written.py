"""Long tables as tables for readers."""

from __future__ import annotations

import math

import pandas as pd

from attention_plasticity.comparison.tables import Cell
from attention_plasticity.family.written import written_parts

ROWS = pd.DataFrame(
    [
        ("b", "all", "0–8K", 0.4812, 0.4702, 0.4922),
        ("b", "all", "8–16K", -0.0004, math.nan, math.nan),
        ("b", "full_attention", "0–8K", 0.5, 0.4, 0.6),
        ("a", "all", "8–16K", 0.25, 0.2, 0.3),
    ],
    columns=["run", "layer_type", "part", "mean", "low", "high"],
)


def test_a_line_per_model_and_type_of_layers() -> None:
    table = written_parts(ROWS, ["0–8K", "8–16K"])
    assert table is not None
    assert table.headings == ("model", "0–8K", "8–16K")
    assert [(line.name, line.part) for line in table.lines] == [
        ("b", ""),
        ("b", "full attention"),
        ("a", ""),
    ]
    assert table.lines[0].cells == (Cell("0.481", "[0.470, 0.492]"), Cell("0.000"))
    assert table.lines[2].cells == (Cell("–"), Cell("0.250", "[0.200, 0.300]"))


def test_many_columns_have_half_the_interval() -> None:
    table = written_parts(ROWS, ["0–8K", "8–16K"], headings=["x", "y"], many=True)
    assert table is not None
    assert table.headings == ("model", "x", "y")
    assert table.lines[0].cells == (Cell("0.481", "± 0.011"), Cell("0.000"))
    assert table.note.startswith("±: half")


def test_no_rows_are_no_table() -> None:
    assert written_parts(ROWS.iloc[:0], ["0–8K"]) is None
