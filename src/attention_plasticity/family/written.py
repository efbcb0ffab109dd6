"""Long tables of several models as tables for readers: a line per model, a column per part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from attention_plasticity.comparison.runs import ALL_LAYERS, part_words
from attention_plasticity.comparison.tables import Cell, Line, WrittenTable
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, PlasticityColumns
from attention_plasticity.tables.names import clean

HALF_NOTE = "±: half of the 95 % interval over texts; a value without it has no known error."
INTERVAL_NOTE = "[ ]: 95 % interval over texts; a value without it has no known error."


def written_parts(
    rows: pd.DataFrame,
    parts: Sequence[str],
    *,
    by: str = "part",
    headings: Sequence[str] = (),
    shown: PlasticityColumns = AT_ONE_POSITION,
    many: bool = False,
    note: str = "",
    digits: int = 3,
) -> WrittenTable | None:
    """A line per model and type of layers with `mean [low, high]` per part; None without rows.

    `headings` name the columns; default: the parts themselves. A table with `many` columns has the
    shorter `mean ± half`. `note` is the text below the table in place of the default.
    """
    if rows.empty:
        return None
    types = rows["layer_type"] if "layer_type" in rows else pd.Series(ALL_LAYERS, rows.index)
    lines = []
    for (run, layer_type), own in rows.groupby([rows["run"], types], sort=False):
        cell = half_cell if many else interval_cell
        cells = {str(row[by]): cell(row, digits) for row in own.to_dict("records")}
        found = tuple(cells.get(part, Cell("–")) for part in parts)
        lines.append(Line(clean(str(run)), part_words(str(layer_type)), found))
    note = note or (HALF_NOTE if many else INTERVAL_NOTE)
    return WrittenTable("study", shown, ("model", *(headings or parts)), tuple(lines), note)


def interval_cell(row: dict[Any, Any], digits: int = 3) -> Cell:
    """`0.481 [0.470, 0.492]`."""
    numbers = (row[name] for name in ("mean", "low", "high"))
    value, low, high = (f"{round(number, digits) + 0.0:.{digits}f}" for number in numbers)
    if math.isnan(row["mean"]):
        return Cell("–")
    return Cell(value, "" if math.isnan(row["low"]) else f"[{low}, {high}]")


def half_cell(row: dict[Any, Any], digits: int = 3) -> Cell:
    """`0.481 ± 0.011`."""
    found = interval_cell(row, digits)
    return Cell(found.value, f"± {row['high'] - row['mean']:.{digits}f}" if found.beside else "")
