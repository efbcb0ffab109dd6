"""`attention-plasticity plot KIND` and the seed's `scripts/plot_*.py`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qk_toolkit.command_line import command_parser, command_settings
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest

OVERVIEW = """\
usage: attention-plasticity plot KIND RUN [--output FILE] [options]

Draw a figure of an analysis, as .png, .svg or .pdf; without --output it is shown in a window.

  plasticity      plasticity over the context: a trace per head, and their mean
  heatmap         plasticity by query position and key position
  components      which dimensions of a query carry position
  map             a metric of every head, layer by head
  profile         plasticity by fifths of the context, with the spread over heads
  predictability  variance from position against plasticity, a point per head
  all             every one of them, into RUN/figures

'attention-plasticity plot KIND --help' explains a kind.
"""
_STORY = """\
Every field can be a flag or a line of the YAML file; a flag wins. Dashes and underscores are alike.
"""


def plot(words: Sequence[str]) -> int:
    """Draw the kind of figure that comes first among the words."""
    from attention_plasticity.plots.settings import KINDS

    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW, end="")
        return 0 if words else 2
    kind = words[0]
    program = f"attention-plasticity plot {kind}"
    if kind == "all":
        return _plot_all(words[1:], program)
    if kind not in KINDS:
        raise ConfigError(f"{kind!r}: unknown kind of figure{nearest(kind, [*KINDS, 'all'])}")
    return plot_one(kind, words[1:], program)


def plot_one(kind: str, words: Sequence[str], program: str) -> int:
    """Draw one figure and save or show it."""
    from attention_plasticity.plots.settings import KINDS
    from qk_toolkit.files import user_path

    settings: Any = _settings(KINDS[kind], words, program, f"results/mine --output {kind}.png")
    from attention_plasticity.plots.drawing import draw
    from attention_plasticity.plots.saving import (
        require_display,
        require_target,
        save_figure,
        show_figure,
    )

    if settings.output is None:
        require_display()
        show_figure(draw(settings))
        return 0
    path = user_path(settings.output)
    require_target(path)
    save_figure(draw(settings), path)
    print(path)
    return 0


def _plot_all(words: Sequence[str], program: str) -> int:
    from attention_plasticity.plots.settings import AllPlots
    from qk_toolkit.files import user_path

    settings: Any = _settings(AllPlots, words, program, "results/mine --format pdf")
    from attention_plasticity.plots.all_figures import save_all

    run = user_path(settings.run)
    folder = user_path(settings.output_dir) if settings.output_dir else run / "figures"
    for path in save_all(run, folder, settings.format):
        print(path)
    return 0


def _settings(model: type[Any], words: Sequence[str], program: str, example: str) -> Any:
    story = f"{(model.__doc__ or '').splitlines()[0]}\n\n{_STORY}"
    parser = command_parser(program, story, f"commands to paste:\n  {program} {example}\n")
    parser.usage = f"{program} [RUN] [--FIELD VALUE …]"
    parser.add_argument(
        "run", nargs="?", metavar="RUN", default=argparse.SUPPRESS, help="folder of an analysis"
    )
    return command_settings(parser, model, words)


def script(kind: str, file: str) -> int:
    """A script of the seeds, by its file's name."""
    import sys

    from qk_toolkit.command_line import guarded

    program = f"python scripts/{Path(file).name}"
    return guarded(lambda: plot_one(kind, sys.argv[1:], program), "nothing was written")
