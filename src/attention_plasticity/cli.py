"""`attention-plasticity <verb>`. Heavy modules are imported inside the verbs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from attention_plasticity import __version__
from qk_toolkit.command_line import allow_closed_stdout, command_parser, command_settings, guarded
from qk_toolkit.debugging import debug_flag
from qk_toolkit.errors import ConfigError

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.run.engines import Engine

_INTERRUPTED = "finished heads, if any, are kept; run the same command again to continue"
_CONTINUED = "finished work is kept; run the same command again to continue"
_SENT = "what was sent or fetched is kept; run the same command again to continue"
_VERBS = {
    "add-rotary": ("qk_sniffer.add_rotary", None),
    "capture": ("qk_sniffer.cli", None),
    "demo": ("attention_plasticity.demo.command", _CONTINUED),
    "export": ("attention_plasticity.export.command", "nothing was written"),
    "plot": ("attention_plasticity.figures.command", "finished figures are kept"),
    "pull": ("qk_dump.hub.commands", _SENT),
    "push": ("qk_dump.hub.commands", _SENT),
    "report": ("attention_plasticity.page.command", "nothing was written"),
    "study": ("qk_study.command", None),
    "verify": ("qk_sniffer.verify.command", None),
}
"""Module of a verb, which has a function of this name, and what an interruption keeps.

Modules are imported by these names when their verb runs, so that the analysis depends on no other
package. A verb without words for an interruption has its own.
"""

_PLACES = {"dataset_local_root": "DUMP", "output_dir": "RUN"}
"""Flags of what `analyze` works on."""
_TOO_MANY = "for several dumps, use attention-plasticity study DUMP DUMP"
_ANALYZE_STORY = """\
Analyse a dump of queries and keys, head by head, and write the tables of a run.

  DUMP  folder, s3://bucket/dump or another URL, or hf://datasets/owner/name@branch
  RUN   folder of the tables, or a URL (default: results/<name of the dump>)

Fields are flags or lines of the YAML file; a flag overrides the file. Switches are --x and --no-x.
Dashes and underscores mean the same.
"""
_ANALYZE_EXAMPLES = """\
commands to paste:
  attention-plasticity analyze path/to/dump results/mine --dry_run
  attention-plasticity analyze path/to/dump results/mine
  attention-plasticity analyze hf://datasets/owner/name@branch results/full --layers 0-3

A run that was interrupted continues with the same command. Commands with other --layers can share
a RUN; the tables have the heads of all of them.
Exit codes: 0 success, 1 some heads failed, 2 wrong usage or config, 130 interrupted.
"""
_OVERVIEW = """\
usage: attention-plasticity <verb> [options]

How flexibly attention heads choose between keys as context grows.

  capture     run a model over texts and keep sampled queries and keys
  verify      check that captured queries and keys are those a model's attention uses
  add-rotary  write how RoPE turns the queries and keys of a dump
  analyze     compute tables of plasticity, head by head, from a dump of queries and keys
  plot        draw figures of an analysis, for a paper
  report      write one HTML page to explore analyses
  study       the whole way for one model, or models, dumps and runs side by side
  export      write files for tools that shorten the cache: statistics, gates, budgets of heads
  push        publish a dump on the Hugging Face Hub, one branch per model
  pull        fetch a dump from the Hub
  demo        analyse real heads that come with the package, with figures and a page

'attention-plasticity <verb> --help' explains a verb.
Every verb has --debug, which prints the traceback of an error.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code."""
    with debug_flag(sys.argv[1:] if arguments is None else arguments) as given:
        return guarded(lambda: _dispatch(given), _INTERRUPTED)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_OVERVIEW, end="")
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(__version__)
        return 0
    if arguments[0] == "analyze":
        return _analyze(arguments[1:])
    if arguments[0] not in _VERBS:
        from qk_toolkit.settings import SEE_HELP, nearest

        hint = nearest(arguments[0], ["analyze", *_VERBS], otherwise=SEE_HELP)
        raise ConfigError(f"{arguments[0]!r}: unknown command{hint}")
    module, kept = _VERBS[arguments[0]]
    verb = getattr(import_module(module), arguments[0].replace("-", "_"))
    if kept is None:
        return int(verb(arguments[1:]))
    return guarded(lambda: int(verb(arguments[1:])), kept)


def analyze() -> int:
    """`python analyze.py`, the entry point the seeds name."""
    with debug_flag(sys.argv[1:]) as given:
        return guarded(lambda: _analyze(given, "python analyze.py"), _INTERRUPTED)


def _analyze(arguments: Sequence[str], program: str = "attention-plasticity analyze") -> int:
    from attention_plasticity.run.engines import LocalProcesses
    from qk_toolkit.flags import flags_of_places

    arguments = flags_of_places("analyze", arguments, _PLACES, _TOO_MANY)
    helps = {"-h", "--help", "--help_all", "--dry_run"} & set(arguments)
    with LocalProcesses(started=0 if helps else 1) as workers:  # import while this process plans
        from attention_plasticity.config import RunnerConfig

        parser = command_parser(program, _ANALYZE_STORY, _ANALYZE_EXAMPLES)
        parser.usage = f"{program} [DUMP [RUN]] [--FIELD VALUE …]"
        config = command_settings(parser, RunnerConfig, arguments, section="analysis")
        if config.dry_run:
            return _dry_run(config)
        workers.workers = config.workers
        engine = workers if config.engine == "local" else None
        if engine is None:
            workers.shutdown()  # the cluster has its own
        return _analyze_one(config, engine)


def _analyze_one(config: RunnerConfig, engine: Engine | None) -> int:
    from attention_plasticity.run.runner import run_analysis
    from qk_toolkit.terminal import TerminalWatcher

    outcome = run_analysis(config, TerminalWatcher(), engine=engine)
    if engine is not None:
        engine.shutdown()
    from attention_plasticity.tables.finished_run import FinishedRun
    from attention_plasticity.tables.summary import print_summary

    with allow_closed_stdout():
        print_summary(FinishedRun.open(outcome.place.place))
    return 1 if outcome.has_failures else 0


def _dry_run(config: RunnerConfig) -> int:
    from attention_plasticity.run.preparation import prepare
    from attention_plasticity.run.runner import print_plan
    from qk_toolkit.terminal import TerminalWatcher

    print_plan(prepare(config, TerminalWatcher()))
    return 0
