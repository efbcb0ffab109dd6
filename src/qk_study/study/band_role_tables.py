"""The tables of rotary bands and roles of the models of a study."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from attention_plasticity.comparison.tables import Cell, Line, WrittenTable
from attention_plasticity.family.written import written_parts
from attention_plasticity.roles import NAMES, UNSURE
from attention_plasticity.tables.names import clean
from qk_study.study.results import StudyResults
from qk_study.study.study_table import StudyTable

BAND_ROLE_NAMES = ("band_shares", "role_shares", "role_scores", "role_changes")
"""Names of the tables that `band_role_tables` can make."""
_HALF = "±: half of the 95 % interval over texts; a value without it has no known error."
_POSSIBLE = (
    "Heads that likely have the role (heads that surely have it – heads that can have it if each "
    "score is somewhere in its 95 % interval). Unsure: heads with several possible roles; without "
    "scores on repeated tokens a far, sink or mixed head can also be an induction head."
)


def band_role_tables(results: StudyResults) -> Iterator[StudyTable]:
    """The tables that the runs of the study allow."""
    if not results.bands.empty:
        yield _bands(results)
    if results.roles.empty:
        return
    yield _shares(results)
    yield _scores(results)
    if not results.role_changes.empty:
        yield _changes(results)


def _bands(results: StudyResults) -> StudyTable:
    table = results.bands
    caption = (
        "Share of the variance of the logit by eighths of the rotary bands, from the fastest (1) "
        "to the slowest (8), as a mean over heads"
    )
    written = _means_and_differences(
        table, "eighth", f"{caption}.", "The CSV file has the wavelengths of the eighths."
    )
    return StudyTable("band_shares", f"{caption}, with 95 % intervals over texts.", table, written)


def _scores(results: StudyResults) -> StudyTable:
    table = results.role_scores
    caption = "Scores on texts that decide roles, as means over heads"
    written = _means_and_differences(table, "role", f"{caption}.", "", digits=4)
    return StudyTable("role_scores", f"{caption}, with 95 % intervals over texts.", table, written)


def _means_and_differences(
    table: pd.DataFrame, by: str, caption: str, note: str, *, digits: int = 3
) -> dict[str, WrittenTable | None]:
    """A table of the means, and one of the differences of pairs."""
    means, differences = table[table["minus"] == ""], table[table["minus"] != ""]
    parts = list(dict.fromkeys(means[by]))
    named = differences.assign(run=differences["run"] + " minus " + differences["minus"])
    found = {caption: means, f"{caption} Differences of the same heads.": named}
    below = f"{_HALF} {note}".strip()
    return {
        words: written_parts(rows, parts, by=by, many=True, note=below, digits=digits)
        for words, rows in found.items()
    }


def _shares(results: StudyResults) -> StudyTable:
    table, lines = results.roles, []
    counts = table.set_index(["run", "role"])[["likely_heads", "sure_heads", "possible_heads"]]
    roles = [role for role in NAMES if counts.xs(role, level="role")["possible_heads"].any()]
    for label in dict.fromkeys(table["run"]):
        cells = []
        for role in roles:
            likely, sure, possible = counts.loc[(label, role)].tolist()
            cells.append(Cell(f"{likely:,}", f"({sure:,}–{possible:,})"))
        own = table[table["run"] == label]
        unsure = int(own["all_heads"].iloc[0] - own["sure_heads"].sum())
        lines.append(Line(clean(label), "", (*cells, Cell(f"{unsure:,}"))))
    caption = "Heads of each model that have each role."
    headings = ("model", *roles, UNSURE)
    written = WrittenTable("study", results.shown, headings, tuple(lines), _POSSIBLE)
    return StudyTable("role_shares", caption, table, {caption: written})


def _changes(results: StudyResults) -> StudyTable:
    table, written = results.role_changes, {}
    for pair in results.pairs:
        chosen = (table["run"] == pair.run.label) & (table["minus"] == pair.minus.label)
        own = table[chosen]
        if own.empty:
            continue
        counts = own.pivot(index="role_before", columns="role_after", values="heads").fillna(0)
        after = [role for role in NAMES if role in counts.columns]
        before = [role for role in NAMES if role in counts.index]
        numbers = counts.loc[before, after].to_numpy(np.int64).tolist()  # (before, after)
        lines = tuple(
            Line(role, "", tuple(Cell(f"{heads:,}" if heads else "–") for heads in row))
            for role, row in zip(before, numbers, strict=True)
        )
        caption = (
            f"Heads by their likely role in {clean(pair.minus.label)} (lines) and in "
            f"{clean(pair.run.label)} (columns)."
        )
        note = "The CSV file also has the numbers of heads whose role is sure before, and after."
        headings = ("role before", *after)
        written[caption] = WrittenTable("study", results.shown, headings, lines, note)
    caption = "Roles of the same heads in two models."
    return StudyTable("role_changes", caption, table, dict(written))
