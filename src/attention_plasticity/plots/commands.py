"""`attention-plasticity plot KIND` and `scripts/plot_*.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qk_toolkit.command_line import command_parser, command_settings
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import SEE_HELP, nearest

OVERVIEW = """\
usage: attention-plasticity plot KIND RUN [--output FILE] [options]

Draw a figure of an analysis as .png, .svg or .pdf. Its caption is written beside it as .txt.
Without --output, a window shows the figure. Figures show plasticity at one position if the run has
it, else plasticity over a bucket; --plasticity bucket asks for the latter.

  plasticity      plasticity over the context: one line per head, and the mean
  heatmap         plasticity by query position and key position
  components      share of the linear position R² in each query dimension
  map             one metric of every head, layer × head
  profile         plasticity over the context: the mean over heads, and the spread over heads
  phase           plasticity at one position against plasticity over a bin, one point per head
  predictability  variance from position against plasticity, one point per head
  attention       attention by distance, of one head or as a mean over heads
  attended        plasticity against attended plasticity at one position, one point per head
  bands           rotary bands of one head, or one metric of the bands of all heads
  kernel          mean logit by distance and the rotary kernel, of one head
  frequencies     rotary phase against the share of fast rotary bands, one point per head
  roles           the role of every head, layer × head
  by_role         plasticity at one position and rotary phase by role, one point per head
  key_heads       one value of every key head, layer × key head: its static error
  fidelity        how well scores without a query rank keys, one point per key head
  drift           drift of queries against drift of keys, before and after RoPE, one point per head
  all             all figures, saved in RUN/figures

'attention-plasticity plot KIND --help' lists the options of a kind.
"""
_DESCRIPTION = """\
Every field can be a flag or a line of a YAML file; flags override the file. - and _ are equivalent.
"""


def plot(arguments: Sequence[str]) -> int:
    """Draw the kind of figure that the first argument names."""
    from attention_plasticity.plots.settings import KINDS

    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(OVERVIEW, end="")
        return 0 if arguments else 2
    kind = arguments[0]
    program = f"attention-plasticity plot {kind}"
    if kind == "all":
        return _plot_all(arguments[1:], program)
    if kind not in KINDS:
        hint = nearest(kind, [*KINDS, "all"], otherwise=SEE_HELP)
        raise ConfigError(f"{kind!r}: unknown kind of figure{hint}")
    return plot_one(kind, arguments[1:], program)


def plot_one(kind: str, arguments: Sequence[str], program: str, shown: str | None = None) -> int:
    """Draw one figure and save or show it. `shown` is the default of the setting plasticity."""
    from attention_plasticity.plots.settings import KINDS
    from qk_toolkit.uploads import output_file

    example = f"results/mine --output {kind}.png"
    settings: Any = _settings(KINDS[kind], arguments, program, example)
    if shown is not None and settings.plasticity is None:
        settings = settings.model_copy(update={"plasticity": shown})
    from attention_plasticity.plots.drawing import draw
    from attention_plasticity.plots.saving import (
        require_display,
        require_target,
        save_figure,
        show_figure,
    )

    if settings.output is None:
        figure = draw(settings)  # first: a wrong path is reported before a missing display
        require_display()
        show_figure(figure)
        return 0
    with output_file(settings.output) as (path, output):
        require_target(path)
        save_figure(draw(settings), path)
    print(output.shown(path))
    return 0


def _plot_all(arguments: Sequence[str], program: str) -> int:
    from attention_plasticity.plots.settings import AllPlots
    from qk_toolkit.uploads import output_folder

    settings: Any = _settings(AllPlots, arguments, program, "results/mine --format pdf")
    from attention_plasticity.plots.all_figures import left_out_lines, save_all
    from attention_plasticity.plots.drawing import with_layers
    from attention_plasticity.tables.finished_run import FinishedRun

    place = settings.output_dir or f"{settings.run.rstrip('/')}/figures"
    options = settings.model_dump(exclude={"run", "output_dir", "format"})
    run = FinishedRun.open(settings.run)
    with output_folder(place) as output:
        for path in save_all(run, output.folder, settings.format, **options):
            print(output.shown(path))
    for line in left_out_lines(with_layers(run, settings.layers, settings.layer_type)):
        print(f"note: {line}", file=sys.stderr)
    return 0


def _settings(model: type[Any], arguments: Sequence[str], program: str, example: str) -> Any:
    description = f"{(model.__doc__ or '').splitlines()[0]}\n\n{_DESCRIPTION}"
    parser = command_parser(program, description, f"commands to paste:\n  {program} {example}\n")
    parser.usage = f"{program} [RUN] [--FIELD VALUE …]"
    parser.add_argument(
        "run", nargs="?", metavar="RUN", default=argparse.SUPPRESS, help="folder of an analysis"
    )
    return command_settings(parser, model, arguments)


def script(kind: str, file: str) -> int:
    """Run a script of `scripts/`, which draws one kind of figure: plasticity over a bucket."""
    from qk_toolkit.command_line import guarded
    from qk_toolkit.debugging import debug_flag

    program = f"python scripts/{Path(file).name}"
    shown = None if kind == "components" else "bucket"
    with debug_flag(sys.argv[1:]) as given:
        return guarded(lambda: plot_one(kind, given, program, shown), "nothing was written")
