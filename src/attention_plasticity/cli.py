"""`attention-plasticity <verb>`: each verb a few lines, heavy imports inside."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from attention_plasticity import __version__
from qk_toolkit.command_line import command_parser, command_settings, guarded, reader_may_leave
from qk_toolkit.errors import ConfigError

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig

_INTERRUPTED = "finished heads are kept, the same command continues the run (without --overwrite)"
_VERBS_OF_OTHERS = "attention_plasticity.verbs"
"""Entry points through which other packages add verbs: the analysis never imports the sniffer."""

_ANALYZE_STORY = """\
Analyse a dump of queries and keys, head by head: how much of a query is predictable from position,
how Gaussian the rest is, and how flexibly the head chooses between two keys.

Every field can be a flag or a line of the YAML file; a flag wins. Dashes and underscores are alike.
"""
_ANALYZE_EXAMPLES = """\
commands to paste:
  attention-plasticity analyze --dataset_local_root path/to/dump
  attention-plasticity analyze --dataset_local_root path/to/dump --dry_run
  attention-plasticity analyze --dataset_local_root hf://datasets/owner/name@branch
  python analyze.py --config configs/smollm2-135m.yaml --dataset_local_root path/to/dump
  python analyze.py --config configs/qwen3-8b.yaml --dataset_local_root path/to/dump \\
      --layers 0-3 --query_model full --output_dir out

A run that was interrupted continues with the same command (without --overwrite).
Exit codes: 0 all well, 1 some heads failed, 2 usage or config, 130 interrupted.
"""
_OVERVIEW = """\
usage: attention-plasticity <verb> [options]

How flexibly attention heads choose between keys as context grows.

  capture   run a model over texts and keep sampled queries and keys
  verify    check that captured queries and keys are those a model's attention uses
  analyze   a dump of queries and keys → tables of plasticity, head by head
  plot      figures of an analysis, for a paper
  compare   several analyses side by side, and against benchmark scores
  report    one HTML file in which to explore analyses
  push      publish a dump on the Hugging Face Hub, one branch per model
  pull      fetch a dump from there
  demo      a real model's heads, analysed, drawn and put on a page

'attention-plasticity <verb> --help' explains a verb.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _dispatch(words), _INTERRUPTED)


def _dispatch(words: list[str]) -> int:
    verbs = {"analyze": _analyze, "demo": _demo, "push": _push, "pull": _pull}
    verbs |= {"plot": _plot, "compare": _compare, "report": _report}
    if not words or words[0] in ("-h", "--help", "help"):
        print(_OVERVIEW, end="")
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(__version__)
        return 0
    if words[0] in verbs:
        return verbs[words[0]](words[1:])
    return _verb_of_others(words, verbs)


def _verb_of_others(words: list[str], own: Iterable[str]) -> int:
    """Run a verb that another package brings: it takes its words and returns an exit code."""
    from importlib.metadata import entry_points

    others = entry_points(group=_VERBS_OF_OTHERS)
    if words[0] in others.names:
        return int(others[words[0]].load()(words[1:]))
    from qk_toolkit.settings import nearest

    raise ConfigError(f"{words[0]!r}: unknown verb{nearest(words[0], [*own, *others.names])}")


def analyze() -> int:
    """`python analyze.py`, the entry point the seeds name."""
    return guarded(lambda: _analyze(sys.argv[1:], "python analyze.py"), _INTERRUPTED)


def _analyze(words: Sequence[str], program: str = "attention-plasticity analyze") -> int:
    from attention_plasticity.config import RunnerConfig

    parser = command_parser(program, _ANALYZE_STORY, _ANALYZE_EXAMPLES)
    config = command_settings(parser, RunnerConfig, words, section="analysis")
    if config.dry_run:
        return _dry_run(config)
    from attention_plasticity.run.progress import TerminalWatcher
    from attention_plasticity.run.runner import run_analysis
    from attention_plasticity.tables.summary import print_summary

    outcome = run_analysis(config, TerminalWatcher())
    with reader_may_leave():
        print_summary(outcome)
    return outcome.exit_code


def _dry_run(config: RunnerConfig) -> int:
    from attention_plasticity.run.fingerprints import InputFiles
    from attention_plasticity.run.plan import estimate
    from attention_plasticity.run.progress import TerminalWatcher
    from attention_plasticity.run.records import FinishedHeads, Records, run_settings
    from attention_plasticity.run.runner import prepare
    from attention_plasticity.tables.summary import print_plan

    dump, plan, paths = prepare(config, TerminalWatcher())
    records = Records(paths.folder, run_settings(config, plan.layout))
    earlier = FinishedHeads({}) if config.overwrite else records.finished_heads(InputFiles(dump))
    print_plan(dump, plan, paths, estimate(dump, plan, config), earlier, config)
    return 0


def _plot(words: Sequence[str]) -> int:
    from attention_plasticity.plots.commands import plot

    return guarded(lambda: plot(words), "figures that were finished are kept")


def _compare(words: Sequence[str]) -> int:
    from attention_plasticity.compare.command import compare

    return guarded(lambda: compare(words), "nothing was written")


def _report(words: Sequence[str]) -> int:
    from attention_plasticity.report.command import report

    return guarded(lambda: report(words), "nothing was written")


def _push(words: Sequence[str]) -> int:
    from qk_dump.hub.commands import INTERRUPTED, push

    return guarded(lambda: push(words), INTERRUPTED)


def _pull(words: Sequence[str]) -> int:
    from qk_dump.hub.commands import INTERRUPTED, pull

    return guarded(lambda: pull(words), INTERRUPTED)


def _demo(words: Sequence[str]) -> int:
    from attention_plasticity.demo.command import demo

    return guarded(lambda: demo(words), "what is finished is kept, the same command continues")
