"""The verb `study`: captures and analyses of several models, tables, figures, page and README."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qk_toolkit.command_line import allow_closed_stdout, command_parser, guarded
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import parse_flags

if TYPE_CHECKING:
    from pathlib import Path

    from filelock import FileLock

    from qk_study.study.results import StudyResults

_PROGRAM = "attention-plasticity study"
_STORY = """\
Study several models: capture and analyse those that are missing, and write one folder with tables
(CSV, Markdown, LaTeX), figures with captions, one page with all models, and a README that lists
every command.

STUDY is a YAML file. An entry of its models has exactly one of model (captured and analysed), dump
(analysed) and run (read):

  texts: {path: texts/}
  capture: {tokenizer: {max_length: 4096}}
  analysis: {pair_sampling: bucket}
  models:
    - {label: small, model: HuggingFaceTB/SmolLM2-135M, family: SmolLM2, size: 135e6}
    - {label: large, dump: dumps/large}
    - {label: tuned, run: results/tuned}
  scores: scores.csv
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity study study.yaml --dry_run
  attention-plasticity study study.yaml
  attention-plasticity study study.yaml --output_dir results/again

A command that was interrupted continues when it is repeated.
Exit codes: 0 success, 1 some models, heads or figures failed, 2 wrong usage or config,
130 interrupted.
"""
_INTERRUPTED = "finished texts and heads are kept; run the same command again to continue"
_LOCK = ".study.lock"


def study(arguments: Sequence[str]) -> int:
    """Run `attention-plasticity study STUDY.yaml …` and return the exit code."""
    return guarded(lambda: _study(arguments), _INTERRUPTED)


def _study(arguments: Sequence[str]) -> int:
    file, flags = _parse(arguments)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
    from qk_study.study.figures import wanted_figures
    from qk_study.study.outputs import write_study
    from qk_study.study.plan import make_plans
    from qk_study.study.results import StudyResults
    from qk_study.study.scores import study_scores
    from qk_study.study.settings import read_study
    from qk_study.study.steps import study_models

    settings = read_study(file, flags)
    wanted, plans = wanted_figures(settings), make_plans(settings)
    scores = study_scores(settings)
    for plan in plans:
        plan.refuse_other_settings()
    if settings.content.dry_run:
        from qk_study.study.dry_run import dry_run

        return dry_run(settings, plans)
    _refuse_several_processes()
    lock = _locked(settings.folder)
    try:
        results = StudyResults(settings, tuple(study_models(plans)), scores)
        drawn = write_study(results, wanted)
    finally:
        lock.release()
    with allow_closed_stdout():
        _print_end(results, drawn.failures)
    heads = sum(one.failed_heads for one in results.models)
    return 1 if results.failed or heads or drawn.failures else 0


def _parse(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} STUDY [--output_dir FOLDER] [--dry_run]"
    parser.add_argument("study", metavar="STUDY", help="YAML file of the study")
    parser.add_argument(
        "--output_dir",
        metavar="FOLDER",
        help="folder of the study (default: that of the file, or results/<name of the file>)",
    )
    parser.add_argument(
        "--dry_run",
        nargs="?",
        const="true",
        metavar="true|false",
        help="print what would be captured and analysed: rows, bytes and hours; write nothing",
    )
    flags = parse_flags(parser, arguments)
    file = flags.pop("study")
    return file, {name: value for name, value in flags.items() if value is not None}


def _refuse_several_processes() -> None:
    """A study is one process; its captures use several GPUs with engine ray."""
    from qk_sniffer.pipeline.ranks import ranks_from

    world = ranks_from().world
    if world > 1:
        raise ConfigError(
            f"study: is one process, got {world}; use capture: {{engine: ray}} for several GPUs, "
            "or capture each model with torchrun and give its dump"
        )


def _locked(folder: Path) -> FileLock:
    """The lock of the folder, so that two commands do not write the same tables."""
    from qk_toolkit.files import try_lock

    folder.mkdir(parents=True, exist_ok=True)
    lock = try_lock(folder / _LOCK)
    if lock is None:
        raise ConfigError(f"{folder}: another study is being made there; wait until it ends")
    return lock


def _print_end(results: StudyResults, failures: Sequence[str]) -> None:
    from attention_plasticity.comparison.tables import print_comparison
    from qk_study.study.outputs import README
    from qk_study.study.readme import PAGE
    from qk_toolkit.terminal import command_console

    folder = results.settings.folder
    if results.comparison is not None:
        print_comparison(results.comparison, command_console())
        print()
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
        if one.run is None:
            yield one.plan.label
        elif one.failed_heads:
            yield f"{one.plan.label} ({count(one.failed_heads, 'head')})"
