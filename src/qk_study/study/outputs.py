"""Writes what is made from the runs of a study: tables, figures, page, README and study.json."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attention_plasticity.page.report import make_report
from qk_study.study.drawn_before import without_times
from qk_study.study.figures import DrawnFigures, draw_figures
from qk_study.study.readme import PAGE, page_title, study_readme
from qk_study.study.record import study_record
from qk_study.study.results import StudyResults
from qk_study.study.tables import write_tables
from qk_toolkit.files import DRAFT_PATTERN, write_text

README, RECORD = "README.md", "study.json"


def write_study(results: StudyResults, wanted: Sequence[str] | None) -> DrawnFigures:
    """Write all files. The same runs and settings give the same bytes.

    The page has no times of the analyses; those are in the files run.json.
    """
    folder, tables, drawn = results.settings.folder, [], DrawnFigures()
    _remove_drafts(folder)
    if results.finished:
        tables = write_tables(results, folder / "tables")
        drawn = draw_figures(results, folder / "figures", wanted, _show)
        _show("page")
        runs = [replace(run, info=without_times(run.info)) for _, run in results.finished]
        make_report(runs, results.labels, page_title(results)).save(folder / PAGE)
    write_text(folder / RECORD, study_record(results))
    write_text(folder / README, study_readme(results, tables, drawn))
    return drawn


def _remove_drafts(folder: Path) -> None:
    """Remove unfinished files that a killed command left in the folders of the study itself."""
    for place in (folder, *(folder / name for name in ("tables", "settings", "figures"))):
        for draft in place.glob(DRAFT_PATTERN):
            draft.unlink(missing_ok=True)
    for draft in folder.glob(f"figures/*/{DRAFT_PATTERN}"):
        draft.unlink(missing_ok=True)


def _show(what: str) -> None:
    print(f"drawing: {what}", file=sys.stderr)
