"""The verb `atlas`: captures of texts and of repeated tokens, analysis, figures and page."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qk_toolkit.command_line import allow_closed_stdout, command_parser, command_settings, guarded

if TYPE_CHECKING:
    from attention_plasticity.run.write import Outcome
    from qk_study.atlas.settings import AtlasSettings

PAGE = "report.html"
_PROGRAM = "attention-plasticity atlas"
_STORY = """\
Find out what each head of a model does: capture texts and random tokens that come twice, analyse
them, and write tables, figures and a page.

MODEL is a name on the Hub or a folder, and the same as --model.name. --texts is the same as
--dataset.path: a file or folder of texts, or a dataset on the Hub.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity atlas HuggingFaceTB/SmolLM2-135M --texts texts/ --dry_run
  attention-plasticity atlas HuggingFaceTB/SmolLM2-135M --texts texts/ --output_dir atlas/smollm2
  attention-plasticity atlas models/mine --texts private.jsonl --capture.tokens false

A command that was interrupted continues when it is repeated (without --overwrite).
Exit codes: 0 success, 1 some heads failed, 2 wrong usage or config, 130 interrupted.
"""
_INTERRUPTED = (
    "finished texts and heads are kept; run the same command again to continue (without "
    "--overwrite)"
)


def atlas(arguments: Sequence[str]) -> int:
    """Run `attention-plasticity atlas MODEL --texts PATH …` and return the exit code."""
    return guarded(lambda: _atlas(arguments), _INTERRUPTED)


def _atlas(arguments: Sequence[str]) -> int:
    from qk_study.atlas.settings import AtlasSettings

    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} MODEL --texts PATH [--output_dir FOLDER] [--FIELD VALUE …]"
    settings = command_settings(parser, AtlasSettings, _as_flags(arguments))
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars would fill a log file
    if settings.dry_run:
        return _dry_run(settings)
    _capture(settings)
    outcome = _analyse(settings)
    _draw(settings)
    with allow_closed_stdout():
        print(f"open the page in a browser: {settings.folder / PAGE}")
    return 1 if outcome.has_failures else 0


def _as_flags(arguments: Sequence[str]) -> list[str]:
    """The arguments with MODEL and --texts as flags of the capture."""
    given = list(arguments)
    if given and not given[0].startswith("-"):
        given[:1] = ["--model.name", given[0]]
    return [
        argument.replace("--texts", "--dataset.path", 1)
        if argument == "--texts" or argument.startswith("--texts=")
        else argument
        for argument in given
    ]


def _dry_run(settings: AtlasSettings) -> int:
    from qk_sniffer.extras import capture_extra

    with capture_extra():
        from qk_sniffer.pipeline.estimate import estimate
        from qk_sniffer.summary import print_estimate

        for name, config in settings.captures.items():
            print(f"capture of {name}")
            print_estimate(config, estimate(config))
    print(f"analysis, figures and page: in {settings.folder}")
    return 0


def _capture(settings: AtlasSettings) -> None:
    """Make the two dumps, or complete them."""
    from qk_sniffer.extras import capture_extra

    with capture_extra():
        from qk_sniffer.pipeline.capture import run_capture
        from qk_toolkit.terminal import TerminalWatcher

        for number, (name, config) in enumerate(settings.captures.items(), start=1):
            print(f"step {number} of 4, capture of {name}: {config.data_root}", file=sys.stderr)
            with TerminalWatcher() as watcher:
                run_capture(config, watcher)


def _analyse(settings: AtlasSettings) -> Outcome:
    from attention_plasticity.run.runner import run_analysis
    from attention_plasticity.tables.finished_run import FinishedRun
    from attention_plasticity.tables.summary import print_summary
    from qk_toolkit.terminal import TerminalWatcher

    print("step 3 of 4, analysis", file=sys.stderr)
    outcome = run_analysis(settings.analysis, TerminalWatcher())
    with allow_closed_stdout():
        print_summary(FinishedRun.open(settings.folder), with_next=False)
    return outcome


def _draw(settings: AtlasSettings) -> None:
    """Write all figures and the page."""
    from attention_plasticity.page.report import make_report
    from attention_plasticity.plots.all_figures import save_all
    from attention_plasticity.tables.finished_run import FinishedRun

    print("step 4 of 4, figures and page", file=sys.stderr)
    run = FinishedRun.open(settings.folder)
    figures = settings.folder / "figures"
    figures.mkdir(exist_ok=True)
    with allow_closed_stdout():
        for path in save_all(run, figures):
            print(path)
        print(make_report([run]).save(settings.folder / PAGE))
