"""`attention-plasticity <verb>`: each verb a few lines, heavy imports inside."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attention_plasticity import __version__
from qk_dump.errors import ConfigError, ToolkitError

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig

INTERRUPTED = 130

_ANALYZE_STORY = """\
Analyse a dump of queries and keys, head by head: how much of a query is predictable from position,
how Gaussian the rest is, and how flexibly the head chooses between two keys.

Every field can be a flag or a line of the YAML file; a flag wins. Dashes and underscores are alike.
"""
_ANALYZE_EXAMPLES = """\
commands to paste:
  attention-plasticity analyze --dataset_local_root path/to/dump
  attention-plasticity analyze --dataset_local_root path/to/dump --dry_run
  python analyze.py --config configs/smollm2-135m.yaml --dataset_local_root path/to/dump
  python analyze.py --config configs/qwen3-8b.yaml --dataset_local_root path/to/dump \\
      --layers 0-3 --query_model full --output_dir out

A run that was interrupted continues with the same command (without --overwrite).
Exit codes: 0 all well, 1 some heads failed, 2 usage or config, 130 interrupted.
"""
_DEMO_EXAMPLES = """\
commands to paste:
  attention-plasticity demo
  attention-plasticity demo --output_dir my-demo
"""
_OVERVIEW = """\
usage: attention-plasticity <verb> [options]

How flexibly attention heads choose between keys as context grows.

  analyze   a dump of queries and keys → tables of plasticity, head by head
  demo      make a small dump with known structure and analyse it

'attention-plasticity <verb> --help' explains a verb.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return _guarded(lambda: _dispatch(words))


def _dispatch(words: list[str]) -> int:
    verbs = {"analyze": _analyze, "demo": _demo}
    if not words or words[0] in ("-h", "--help", "help"):
        print(_OVERVIEW, end="")
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(__version__)
        return 0
    if words[0] not in verbs:
        from qk_dump.settings import nearest

        raise ConfigError(f"{words[0]!r}: unknown verb{nearest(words[0], verbs)}")
    return verbs[words[0]](words[1:])


def analyze() -> int:
    """`python analyze.py`, the entry point the seeds name."""
    return _guarded(lambda: _analyze(sys.argv[1:], "python analyze.py"))


def _analyze(words: Sequence[str], program: str = "attention-plasticity analyze") -> int:
    from attention_plasticity.config import RunnerConfig
    from qk_dump.files import user_path
    from qk_dump.settings import add_flags, parse_flags, settings_from

    parser = _parser(program, _ANALYZE_STORY, _ANALYZE_EXAMPLES)
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of the fields below")
    add_flags(parser, RunnerConfig)
    flags = parse_flags(parser, words)
    path = flags.pop("config", None)
    config = settings_from(
        RunnerConfig,
        yaml_path=user_path(path) if path is not None else None,
        section="analysis",
        flags=flags,
    )
    if config.dry_run:
        return _dry_run(config)
    from attention_plasticity.progress import TerminalWatcher
    from attention_plasticity.runner import run_analysis
    from attention_plasticity.summary import print_summary

    outcome = run_analysis(config, TerminalWatcher())
    with _reader_may_leave():
        print_summary(outcome)
    return outcome.exit_code


def _dry_run(config: RunnerConfig) -> int:
    from attention_plasticity.fingerprints import InputFiles
    from attention_plasticity.plan import estimate
    from attention_plasticity.records import Earlier, Records, run_settings
    from attention_plasticity.runner import prepare
    from attention_plasticity.summary import print_plan

    dump, plan, paths = prepare(config)
    records = Records(paths.folder, run_settings(config, plan.layout))
    earlier = Earlier({}, None) if config.overwrite else records.earlier(InputFiles(dump))
    print_plan(dump, plan, paths, estimate(dump, plan, config), earlier, config)
    return 0


def _demo(words: Sequence[str]) -> int:
    from qk_dump.files import user_path
    from qk_dump.settings import parse_flags

    parser = _parser(
        "attention-plasticity demo", "Make a small dump and analyse it.", _DEMO_EXAMPLES
    )
    parser.add_argument(
        "--output_dir", default="demo", metavar="TEXT", help="where to put it [demo]"
    )
    folder = user_path(parse_flags(parser, words)["output_dir"])
    from attention_plasticity.demo import run_demo

    return run_demo(folder)


def _parser(program: str, description: str, examples: str) -> argparse.ArgumentParser:
    from qk_dump.settings import FlagParser

    return FlagParser(
        prog=program,
        usage=f"{program} [--FIELD VALUE …]",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _guarded(verb: Callable[[], int]) -> int:
    """Run a verb; a person's mistake is one line, an interruption is 130, neither a traceback."""
    _make_streams_safe()
    try:
        with _reader_may_leave(), _polite_termination():
            return verb()
        return 0  # the reader left before the end
    except ToolkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(
            "interrupted; finished heads are kept, the same command continues the run "
            "(without --overwrite)",
            file=sys.stderr,
        )
        return INTERRUPTED
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _make_streams_safe() -> None:
    """A closed stream swallows output; one that lacks a character shows '?' instead."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Let the reader of our output go away (`| head`) without a word or a changed exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _polite_termination() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C, workers stopped and cursor shown, with the signal's own code."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
