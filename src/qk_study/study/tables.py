"""The tables of a study, as CSV, Markdown and LaTeX.

`models` has the settings and counts of every model, `means` the means over heads with intervals,
`fifths` plasticity in the first and the last fifth of the longest text, and `differences` those
from the first model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from attention_plasticity.comparison.drawn import sample_sentences
from attention_plasticity.comparison.runs import COMPARED, kinds_of
from attention_plasticity.comparison.tables import (
    WrittenTable,
    differences_table,
    key_heads_table,
    means_table,
)
from attention_plasticity.tables.intervals import half_width
from qk_study.study.band_role_tables import BAND_ROLE_NAMES, band_role_tables
from qk_study.study.family_tables import FAMILY_NAMES, family_tables
from qk_study.study.mean_table import means_frame, written_means
from qk_study.study.model_table import models_frame, written_models
from qk_study.study.results import StudyResults
from qk_study.study.study_table import StudyTable
from qk_toolkit.files import write_text

NAMES = (
    *("models", "means", "fifths", "differences", "key_heads", "scores", "score_sources", "notes"),
    *FAMILY_NAMES,
    *BAND_ROLE_NAMES,
)
_ENDINGS = ("csv", "md", "tex")
_FIFTHS = ", means in the first and the last fifth of the longest text, and their difference"


def write_tables(results: StudyResults, folder: Path) -> list[StudyTable]:
    """Write all tables. Tables of an earlier command that this study does not have are removed."""
    tables = list(study_tables(results))
    files = {f"{one.name}.{end}": text for one in tables for end, text in one.files.items()}
    for name, text in files.items():
        write_text(folder / name, text)
    for name in NAMES:
        for end in _ENDINGS:
            if f"{name}.{end}" not in files:
                (folder / f"{name}.{end}").unlink(missing_ok=True)
    return tables


def study_tables(results: StudyResults) -> Iterator[StudyTable]:
    """All tables of a study with at least one run."""
    yield _table(
        "models", "The models of the study.", models_frame(results), written_models(results)
    )
    means = means_frame(results)
    yield _table(
        "means",
        "Means over the heads of each model, with 95 % intervals over texts.",
        means,
        written_means(means, results),
    )
    yield StudyTable(
        "fifths",
        "Plasticity in the first and the last fifth, for each model and type of layers.",
        with_intervals(results.table),
        {
            f"Plasticity {shown.words}: mean over heads{_FIFTHS * (shown.drop is not None)}.": (
                means_table(results.table, shown)
            )
            for shown in kinds_of(results.table)
        },
    )
    yield from family_tables(results)
    yield from band_role_tables(results)
    yield from _comparison_tables(results)
    if results.scores is not None:
        scores = results.scores
        yield StudyTable("scores", "Benchmark scores of the models.", scores.of(results.labels))
        yield StudyTable(
            "score_sources",
            "Where each score comes from: file, task, metric and standard error.",
            scores.sources,
        )


def _table(name: str, caption: str, frame: pd.DataFrame, written: WrittenTable) -> StudyTable:
    return StudyTable(name, caption, frame, {caption: written})


def _comparison_tables(results: StudyResults) -> Iterator[StudyTable]:
    """The tables that need two models."""
    data = results.comparison
    if data is None:
        return
    sample, first = sample_sentences(data), data.runs[0].label
    yield StudyTable(
        "differences",
        f"Every model minus {first}, with 95 % intervals.",
        data.differences,
        {
            f"Differences of {shown.name} from {first}. {sample}": differences_table(
                data.differences, shown
            )
            for shown in kinds_of(results.table)
        },
    )
    shown = results.shown
    key_heads = key_heads_table(data.key_heads, shown)
    if key_heads is not None:
        yield _table("key_heads", "Means over key heads.", data.key_heads, key_heads)
    if not data.notes.empty:
        yield StudyTable("notes", "Cautions about the numbers.", data.notes)


def with_intervals(compared: pd.DataFrame) -> pd.DataFrame:
    """The table of means with both ends of the 95 % interval of every mean."""
    columns: dict[str, Any] = {}
    for name in COMPARED:
        reach = half_width(compared[f"{name}_se"], compared[f"{name}_df"] + 1.0)  # (rows,)
        columns |= {f"{name}_low": compared[name] - reach, f"{name}_high": compared[name] + reach}
    return pd.concat([compared, pd.DataFrame(columns, index=compared.index)], axis=1)
