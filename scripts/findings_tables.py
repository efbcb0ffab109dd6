"""What the tables of the findings share: cells, Markdown, and the place of a table in a page."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from attention_plasticity.run.head_means import MeanEstimate

NONE = "–"


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose other columns are numbers."""
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def estimate(mean: MeanEstimate) -> str:
    """A mean over heads with its standard error."""
    return f"{mean.value:.3f} ± {mean.standard_error:.3f}"


def corrected_cell(head: Mapping[Any, Any], name: str) -> str:
    """A value of one head, corrected for bias, with its standard error."""
    return f"{head[name] - head[f'{name}_bias']:.3f} ± {head[f'{name}_se']:.3f}"


def head_name(head: Mapping[Any, Any]) -> str:
    """`layer.head`."""
    return f"{head['layer']:.0f}.{head['q_head']:.0f}"


def rank_correlation(one: pd.Series, other: pd.Series) -> float:
    """Spearman's correlation of two columns with the same index."""
    return float(one.corr(other, method="spearman"))


def write_tables(document: Path, tables: Mapping[str, str]) -> None:
    """Put every table between its two markers in a page."""
    text = document.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(begin, 1)
        text = head + begin + "\n" + table + "\n\n" + end + rest.split(end, 1)[1]
    document.write_text(text, encoding="utf-8")
    print(document, file=sys.stderr)
