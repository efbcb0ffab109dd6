"""The verb `study`: captures, analyses, tables, figures, page and README of one or more models."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from qk_toolkit.command_line import FlagParser, allow_closed_stdout, command_parser, guarded
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import parse_flags

if TYPE_CHECKING:
    from pathlib import Path

    from filelock import FileLock
    from pydantic import BaseModel

    from qk_study.results import StudyResults
    from qk_study.settings import StudySettings

_PROGRAM = "attention-plasticity study"
_STORY = """\
Study one or more models: capture and analyse what is missing, and write one folder with tables
(CSV, Markdown, LaTeX), figures with captions, one page and a README.

PLACE is a model (captured and analysed; a name on the Hub or a folder), a dump (analysed) or a run
(read). Several places are compared with the first. STUDY.yaml has one entry per model, as in
docs/study.md. In the folder of texts one file is one text. Standard errors need at least four.
Level and drop need --baselines to compare with.

Flags of capture and analyze work too, such as --model.dtype bfloat16, --tokenizer.max_length 4096.
Switches are --x and --no-x.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity study HuggingFaceTB/SmolLM2-135M --texts texts/ --dry_run
  attention-plasticity study results/base results/tuned --labels base,tuned
  attention-plasticity study results/mine --baselines

A command that was interrupted continues when it is repeated.
Exit codes: 0 success, 1 some models, heads or figures failed, 2 wrong usage or config,
130 interrupted.
"""
_INTERRUPTED = "what is finished is kept; run the same command again to continue"
_OF_THE_STUDY = ("dataset", "output", "output_dir", "dry_run", "overwrite", "repeated")
"""Fields and sections of captures and analyses that have no flag here: the study sets them."""


def study(arguments: Sequence[str]) -> int:
    """Run `attention-plasticity study PLACE …` and return the exit code."""
    return guarded(lambda: _study(arguments), _INTERRUPTED)


def _study(arguments: Sequence[str]) -> int:
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
    return run_study(settings_of(arguments))


def run_study(settings: StudySettings) -> int:
    """Do what is missing, write everything, and return the exit code."""
    from qk_dump.layout import refuse_other_output
    from qk_study.dry_run import dry_run, tell_time
    from qk_study.figures import wanted_figures
    from qk_study.outputs import refuse_other_study, write_study
    from qk_study.plan import make_plans
    from qk_study.results import StudyResults
    from qk_study.steps import refuse_other_settings, study_models

    wanted, plans = wanted_figures(settings), make_plans(settings)
    refuse_other_output(settings.folder, "study", "output_dir")
    refuse_other_study(settings)
    for plan in plans:
        refuse_other_settings(plan)
    if settings.content.dry_run:
        return dry_run(settings, plans)
    _refuse_several_processes()
    tell_time(settings, plans)
    lock = _locked(settings.folder)
    try:
        results = StudyResults(settings, tuple(study_models(settings, plans)))
        drawn = write_study(results, wanted)
    finally:
        lock.release()
    with allow_closed_stdout():
        _print_end(results, drawn.failures)
    heads = sum(one.failed_heads for one in results.models)
    return 1 if results.failed or heads or drawn.failures else 0


def settings_of(arguments: Sequence[str]) -> StudySettings:
    """The settings from the words of a command."""
    from attention_plasticity.config import RunnerConfig
    from qk_sniffer.config import CaptureConfig
    from qk_study.reading import read_study
    from qk_study.settings import DRAWS, StudyFile, StudyFlags
    from qk_toolkit.flags import add_flags
    from qk_toolkit.settings import fields_of, place_flags, section_of

    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} PLACE … | STUDY.yaml [--texts PATH] [--FIELD VALUE …]"
    parser.add_argument("places", metavar="PLACE", nargs="+", help="models, dumps, runs, or a file")
    parser.add_argument(
        "--texts", metavar="PATH", help="texts of captures: file, folder, or dataset on the Hub"
    )
    parser.add_argument("--labels", metavar="A,B", help="names of the places [their own names]")
    add_flags(parser, StudyFlags)
    for action in parser._actions:
        if action.dest == "baselines":  # the flag may stand alone
            action.nargs, action.const = "?", str(DRAWS)
    sections: dict[str, type[BaseModel]] = {"capture": CaptureConfig, "analysis": RunnerConfig}
    names = {
        kind: [
            name
            for name, field in fields_of(model).items()
            if name.partition(".")[0] not in _OF_THE_STUDY
            and (section_of(field) is None or field.default is None)
        ]
        for kind, model in sections.items()
    }
    of_texts = [name for name in fields_of(StudyFile) if name.startswith("texts.")]
    _add_hidden(parser, [*of_texts, *(name for own in names.values() for name in own)])
    _refuse_several_texts(arguments)
    given: dict[str, Any] = parse_flags(parser, arguments)
    places, labels = given.pop("places"), given.pop("labels")
    if (texts := given.pop("texts")) is not None:
        given["texts.path"] = texts
    own = {
        kind: place_flags({}, model, {name: given[name] for name in names[kind] if name in given})
        for kind, model in sections.items()
    }
    flags = {name: value for name, value in given.items() if name in fields_of(StudyFile)}
    settings = read_study(places, flags, labels.split(",") if labels else None, own)
    return replace(settings, words=tuple(arguments))


def _refuse_several_texts(arguments: Sequence[str]) -> None:
    """A shell writes the names of the files in place of texts/*.txt."""
    words = list(arguments)
    if "--texts" not in words or words[0].startswith("-"):  # places may follow the flag
        return
    after = words[words.index("--texts") + 1 :]
    files = list(takewhile(lambda word: not word.startswith("-"), after))
    if len(files) > 1:
        raise ConfigError(
            f"--texts: takes one file or folder, got {len(files)} places; for the files of a "
            "folder, give the folder: texts/ in place of texts/*.txt"
        )


def _add_hidden(parser: FlagParser, names: Sequence[str]) -> None:
    """Flags of captures and analyses, which the help of these verbs explains."""
    for name in dict.fromkeys(names):
        parser.add_argument(
            f"--{name}", nargs="?", const="true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def _refuse_several_processes() -> None:
    """A study is one process; its captures use several GPUs with Ray."""
    from qk_sniffer.capture.ranks import ranks_from

    world = ranks_from().world
    if world > 1:
        raise ConfigError(
            f"study: is one process, got {world}; use capture: {{ray: {{}}}} for several GPUs, "
            "or capture each model with torchrun and give its dump"
        )


def _locked(folder: Path) -> FileLock:
    """The lock of the folder, so that two commands do not write the same tables."""
    from qk_study.reading import LOCK
    from qk_toolkit.files import require_writable, try_lock

    require_writable(folder / LOCK, "Choose another output_dir.", "output_dir: ")
    lock = try_lock(folder / LOCK)
    if lock is None:
        raise ConfigError(f"{folder}: another study is being made there; wait until it ends")
    return lock


def _print_end(results: StudyResults, failures: Sequence[str]) -> None:
    from attention_plasticity.compare.writers import print_lines
    from attention_plasticity.comparison import print_comparison
    from attention_plasticity.tables.summary import print_summary
    from qk_study.outputs import PAGE, README
    from qk_toolkit.terminal import command_console

    folder = results.settings.folder
    console = command_console()
    if len(results.finished) > 1:
        print_comparison(results.comparison, console)
        print()
    elif results.finished:
        print_summary(results.finished[0][1], console, with_next=False)
    for text in results.study_cautions:
        print_lines(console, text, first="note: ")
    if results.with_baselines:
        print(f"baselines: {shlex.join(results.with_baselines)}")
    for text in failures:
        print(f"failed: {text}")
    if failed := ", ".join(_failed_models(results)):
        print(f"failed: {failed}; the reasons are in {folder / README}")
    print(f"tables, figures, commands and cautions: {folder / README}")
    if results.finished:
        print(f"open the page in a browser: {folder / PAGE}")


def _failed_models(results: StudyResults) -> Iterator[str]:
    """The labels of models that failed, and those of runs without some of their heads."""
    from qk_toolkit.formatting import count

    for one in results.models:
        if one.failure:
            yield one.plan.label if one.run is None else f"{one.plan.label} (baselines)"
        elif one.failed_heads:
            yield f"{one.plan.label} ({count(one.failed_heads, 'head')})"
