"""Writes what is made from the runs of a study: tables, figures, page, README and study.json.

The same runs and settings give the same bytes. The page and study.json have no times; those of the
analyses are in the files run.json.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.compare.study_tables import NAMES_OF_TABLES, NamedTable, tables_of
from attention_plasticity.compare.writers import markdown_table, markdown_text
from attention_plasticity.page.report import make_report
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.names import clean
from attention_plasticity.tables.run_info import NUMERIC_LIBRARIES, sha256_of
from qk_study.figures import DrawnFigures, draw_figures
from qk_study.results import StudyResults
from qk_study.settings import StudySettings
from qk_study.steps import StudiedModel
from qk_toolkit.errors import ConfigError, in_short, without_secrets
from qk_toolkit.files import DRAFT_PATTERN, read_json, same_place, write_text
from qk_toolkit.formatting import count

README, RECORD, PAGE = "README.md", "study.json", "report.html"
_FORMAT = 1
_LIBRARIES = (*NUMERIC_LIBRARIES, "pandas", "matplotlib")
_TIMES = ("finished", "seconds")
"""Entries of run.json that a repeated analysis changes."""
_MAIN_TABLES = ("means", "differences", "baselines", "lengths", "band_shares", "role_shares")
"""Tables of which the README shows the first part, with the figures of the same names."""
_MAIN_FIGURES = ("profile", "map-plasticity")
_ENDINGS = ("csv", "md", "tex")  # of tables
_SHOWN_AS = (".png", ".svg")
_WHAT = {
    "model": "captured from {place}, and analysed",
    "dump": "analysed from the dump {place}",
    "run": "read from the finished run {place}",
}


def write_study(results: StudyResults, wanted: Sequence[str] | None) -> DrawnFigures:
    """Write all files."""
    folder, drawn = results.settings.folder, DrawnFigures()
    tables: list[NamedTable] = []
    for draft in folder.glob(f"**/{DRAFT_PATTERN}"):  # of a killed command
        if draft.relative_to(folder).parts[0] not in ("dumps", "repeated", "runs"):
            draft.unlink(missing_ok=True)
    if results.finished:
        tables = _write_tables(results, folder / "tables")
        drawn = draw_figures(results, folder / "figures", wanted, _show)
        _show("page")
        runs = [_without_times(run) for _, run in results.finished]
        make_report(runs, results.labels, _title(results)).save(folder / PAGE)
    write_text(folder / RECORD, _record(results))
    write_text(folder / README, "\n".join(_readme(results, tables, drawn)).rstrip() + "\n")
    return drawn


def _write_tables(results: StudyResults, folder: Path) -> list[NamedTable]:
    """Write all tables. Tables of an earlier command that this study does not have are removed."""
    tables = list(tables_of(results.comparison))
    files = {name: text for one in tables for name, text in one.files.items()}
    for name, text in files.items():
        write_text(folder / name, text)
    for name in (f"{one}.{end}" for one in NAMES_OF_TABLES for end in _ENDINGS):
        if name not in files:
            (folder / name).unlink(missing_ok=True)
    return tables


def refuse_other_study(settings: StudySettings) -> None:
    """Raise a `ConfigError` if the folder holds a study of other models, dumps or runs.

    Its README and its tables would be lost.
    """
    try:
        recorded = read_json(settings.folder / RECORD)["models"]
        places = [str(one["place"]) for one in recorded]
    except (OSError, ValueError, TypeError, KeyError):
        return
    ours = [model.entry.place for model in settings.models]
    if places and not any(same_place(one, other) for one in ours for other in places):
        listed = ", ".join(places[:3]) + (" and others" if len(places) > 3 else "")
        raise ConfigError(
            f"output_dir: {settings.output_dir}: holds a study of {in_short(listed)}; choose "
            "another folder"
        )


def _show(what: str) -> None:
    print(f"drawing: {what}", file=sys.stderr)


def _without_times(run: FinishedRun) -> FinishedRun:
    info = {name: run.info[name] for name in run.info if name not in _TIMES}
    return replace(run, info=info)


def _title(results: StudyResults) -> str:
    """The title of the page and of the README."""
    given, labels = results.settings.content.title, results.labels
    what = labels[0] if len(labels) == 1 else count(len(labels), "model")
    return clean(given) if given else f"Attention plasticity of {what}"


def _record(results: StudyResults) -> str:
    """study.json: settings, versions, and fingerprints of what the study was made from."""
    settings = results.settings
    record = {
        "format_version": _FORMAT,
        "words": settings.words,
        "output_dir": settings.output_dir,
        "settings": settings.content.model_dump(
            mode="json", exclude={"dry_run", "output_dir"}, exclude_none=True
        ),
        "models": [_model_record(one) for one in results.models],
        "cautions": results.cautions,
        "versions": {
            "attention-plasticity": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
        },
    }
    return without_secrets(json.dumps(record, indent=2, ensure_ascii=False, default=str)) + "\n"


def _model_record(one: StudiedModel) -> dict[str, Any]:
    """A model: its entry, the settings of its parts, and what identifies its dump and tables."""
    entry, run = one.plan.model.entry, one.run
    found = {
        "label": one.plan.label,
        "folder": one.plan.model.folder,
        "source": entry.source,
        "place": entry.place,
        "run": one.plan.run,
        **entry.model_dump(include={"family", "size", "checkpoint", "phase"}, exclude_none=True),
        "parts": {part.kind: part.values for part in one.plan.parts},
    }
    if one.failure:
        found["failure"] = one.failure
    if run is None:
        return found
    return found | {
        "heads": run.info.get("heads"),
        "texts": run.texts or None,
        "dump_fingerprint": (run.info.get("input") or {}).get("fingerprint"),
        "capture_versions": run.dump.get("versions"),
        "analysis_versions": run.info.get("versions"),
        "sha256": run.info.get("sha256") or {"head_metrics": sha256_of(run.path("head_metrics"))},
    }


def _readme(
    results: StudyResults, tables: Sequence[NamedTable], drawn: DrawnFigures
) -> Iterator[str]:
    """README.md: main results, models, failures, cautions, commands, and files."""
    content, words = results.settings.content, results.settings.words
    yield f"# {markdown_text(_title(results))}\n"
    if content.description.strip():
        yield f"{content.description.strip()}\n"
    yield (
        f"Made with attention-plasticity {__version__}. `{PAGE}` shows all heads of all models in "
        "a browser, `tables/` has the numbers, `figures/` the figures with captions, and "
        f"`{RECORD}` the settings, versions and fingerprints.\n"
    )
    yield from _section("Results", _main_results(tables, drawn))
    yield from _section("Models", [*(f"- {_model_line(one)}" for one in results.models), ""])
    yield from (markdown_table(one.shown[0]) for one in tables if one.name == "models")
    yield from _list("Failures", _failures(results, drawn))
    yield from _list("Cautions", results.cautions)
    yield "## Commands\n"
    yield (
        "All paths are relative to the folder in which the study was run. The first command makes "
        "everything again that is missing, the others make single parts"
        f"{', and the last one adds baselines' if results.with_baselines else ''}.\n"
    )
    parts = [list(part.command) for one in results.models for part in one.plan.parts]
    parts += [results.with_baselines] if results.with_baselines else []
    yield "```bash"
    yield from map(shlex.join, [["attention-plasticity", "study", *words], *parts])
    yield "```\n"
    lines = [f"- `tables/{one.name}`: {markdown_text(one.caption)}" for one in tables]
    kinds = "\nAll tables are CSV files. Those that a reader can use are also Markdown and LaTeX.\n"
    yield from _section("Tables", [*lines, kinds] if tables else [])
    yield from _section("Figures", _figures(results, drawn))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A section; nothing without lines."""
    found = list(lines)
    yield from ([f"## {title}\n", *found] if found else [])


def _list(title: str, texts: Iterable[str]) -> Iterator[str]:
    found = [f"- {markdown_text(text)}" for text in texts]
    yield from _section(title, [*found, ""] if found else [])


def _main_results(tables: Sequence[NamedTable], drawn: DrawnFigures) -> Iterator[str]:
    """The main tables and figures; the others are listed below."""
    known = {table.name: markdown_table(table.shown[0]) for table in tables if table.shown}
    figures = {Path(name).stem: name for name in drawn.of_study if name.endswith(_SHOWN_AS)}
    for name in _MAIN_TABLES:
        if text := known.get(name):
            yield text
        if file := figures.get(name.replace("_", "-")):
            yield f"![{name}](figures/{file})\n"
    own = [(folder, name) for folder, names in drawn.of_models.items() for name in names]
    if len(drawn.of_models) == 1:
        yield from (f"![{name}](figures/{folder}/{name})\n" for folder, name in own if _leads(name))


def _leads(name: str) -> bool:
    """Whether a figure of the only model is shown in the README."""
    return Path(name).stem in _MAIN_FIGURES and name.endswith(_SHOWN_AS)


def _model_line(one: StudiedModel) -> str:
    entry = one.plan.model.entry
    label = f"**{markdown_text(one.plan.label)}**"
    if one.run is None:
        return f"{label}: **failed**, so it is missing in tables and figures"
    what = _WHAT[entry.source].format(place=f"`{entry.place}`")
    failed = f", {count(one.failed_heads, 'head')} failed" if one.failed_heads else ""
    return f"{label}: {what}; {count(len(one.run.head_metrics), 'head')}{failed}"


def _failures(results: StudyResults, drawn: DrawnFigures) -> Iterator[str]:
    """Models, heads and figures that are missing."""
    for one in results.failed:
        yield f"{one.plan.label}{': baselines' if one.run else ''}: {one.failure}"
    for plan, run in results.finished:
        for row in run.failures.to_dict("records"):
            yield f"{plan.label}, layer {row['layer']}, head {row['q_head']}: {row['reason']}"
    yield from drawn.failures


def _figures(results: StudyResults, drawn: DrawnFigures) -> Iterator[str]:
    """The figures of several models, those of each model, and those that were not drawn."""
    lines = [f"- `figures/{name}`" for name in drawn.of_study]
    for plan, _ in results.finished:
        if names := drawn.of_models.get(plan.model.folder):
            listed = ", ".join(f"`{name}`" for name in names)
            lines.append(
                f"- {markdown_text(plan.label)}, in `figures/{plan.model.folder}/`: {listed}"
            )
    if lines:
        yield from (*lines, "")
        yield "The caption of each figure is beside it, in the .txt file of the same name.\n"
    if drawn.left_out:
        yield "Not drawn:\n"
        yield from (f"- {markdown_text(text)}" for text in drawn.left_out)
