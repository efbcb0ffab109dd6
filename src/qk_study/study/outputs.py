"""Writes what is made from the runs of a study: tables, figures, page, README and study.json."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from attention_plasticity.page.report import make_report
from attention_plasticity.tables.finished_run import FinishedRun
from qk_study.study.figures import DrawnFigures, draw_figures
from qk_study.study.readme import PAGE, study_readme
from qk_study.study.record import study_record
from qk_study.study.results import StudyResults
from qk_study.study.tables import write_tables
from qk_toolkit.files import write_text

README, RECORD = "README.md", "study.json"
_TIMES = ("finished", "seconds")  # entries of run.json that a repeated analysis changes


def write_study(results: StudyResults, wanted: Sequence[str] | None) -> DrawnFigures:
    """Write all files. The same runs and settings give the same bytes."""
    folder, tables, drawn = results.settings.folder, [], DrawnFigures()
    if results.finished:
        tables = write_tables(results, folder / "tables")
        drawn = draw_figures(results, folder / "figures", wanted, _show)
        _show("page")
        runs = [_without_times(run) for _, run in results.finished]
        make_report(runs, results.labels).save(folder / PAGE)
    write_text(folder / RECORD, study_record(results))
    write_text(folder / README, study_readme(results, tables, drawn))
    return drawn


def _show(what: str) -> None:
    print(f"drawing: {what}", file=sys.stderr)


def _without_times(run: FinishedRun) -> FinishedRun:
    """The run without the times of its analysis, which are in its run.json."""
    return replace(run, info={key: run.info[key] for key in run.info if key not in _TIMES})
