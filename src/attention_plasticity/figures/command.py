"""`attention-plasticity plot NAME RUN` and `scripts/plot_*.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qk_toolkit.command_line import command_parser, command_settings
from qk_toolkit.errors import ConfigError

if TYPE_CHECKING:
    from attention_plasticity.figures.registry import Spec
    from attention_plasticity.figures.settings import PlotSettings, ScriptSettings

_PROGRAM = "attention-plasticity plot"
_USAGE = f"{_PROGRAM} NAME RUN [--OPTION VALUE …]\n       {_PROGRAM} all RUN [--OPTION VALUE …]"
_STORY = """\
Draw a figure of an analysis, in the width of a column of a paper. Its caption is written beside it.
Figures show RoPE-aligned plasticity if the run has it, else plasticity over a bucket. 'all'
draws every figure that the tables of the run allow, and says what the others need.
"""
_COMMANDS = """\
commands to paste:
  {program} all results/mine --format pdf
  {program} map results/mine --metric drop --width text --output drop.pdf
  {program} profile results/mine --layer_type full

Exit codes: 0 success, 1 a figure failed, 2 wrong usage or config, 130 interrupted.
"""
_COMMON = ("layers", "metric", "plasticity", "width")
"""Options in the help of the verb; that of a figure has its own."""
_ALL = "all"


def plot(arguments: Sequence[str]) -> int:
    """Draw the figure that the first argument names, or all figures."""
    from attention_plasticity.figures.registry import spec_of

    name = arguments[0] if arguments else ""
    if not name or name in ("-h", "--help", "help"):
        try:
            _settings(_parser(None), ["--help"])
        except SystemExit:
            return 0 if name else 2
    if name == _ALL:
        return _plot_all(_settings(_parser(None), arguments[1:]))
    spec = spec_of(name)
    return _plot_one(spec, _settings(_parser(spec), arguments[1:]))


def _parser(spec: Spec | None) -> Any:
    """The parser of a figure, or of all."""
    from attention_plasticity.figures.registry import figures_of

    program = f"{_PROGRAM} {spec.name}" if spec else _PROGRAM
    if spec is None:
        names = "\n".join(f"  {one.name:<16}{one.shows}" for one in figures_of("run"))
        story = f"{_STORY}\nfigures ('{_PROGRAM} NAME --help' has the options of one):\n{names}"
        parser = command_parser(program, story, _COMMANDS.format(program=program))
        parser.usage = _USAGE
    else:
        needs = "".join(f"\nIt needs {need.reason}." for need in spec.needs)
        parser = command_parser(
            program,
            f"{spec.shows[:1].upper()}{spec.shows[1:]}.{needs}",
            f"commands to paste:\n  {program} results/mine\n"
            f"  {program} results/mine --width text --output {spec.name}.pdf\n",
        )
        parser.usage = f"{program} RUN [--OPTION VALUE …]"
    parser.add_argument(
        "run", nargs="?", metavar="RUN", default=argparse.SUPPRESS, help="folder of an analysis"
    )
    taken = spec.taken if spec else _COMMON
    _show_only(parser, {*taken, "output", "format", "config", "debug", "help"})
    return parser


def _show_only(parser: Any, names: Collection[str]) -> None:
    """Leave other flags out of the help."""
    whole = parser.format_help

    def format_help() -> Any:
        for action in parser._actions:
            if action.option_strings and action.dest not in names:
                action.help = argparse.SUPPRESS
        return whole()

    parser.format_help = format_help


def _settings(parser: Any, arguments: Sequence[str]) -> PlotSettings:
    from attention_plasticity.figures.settings import PlotSettings

    return command_settings(parser, PlotSettings, arguments)


def _plot_one(spec: Spec, settings: PlotSettings) -> int:
    from attention_plasticity.figures.draw import draw_figure, options_of
    from attention_plasticity.figures.saving import require_target, save_figure
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_toolkit.files import user_path

    given = settings.given()
    options_of(spec, given)
    run = FinishedRun.open(settings.run)
    ending = settings.format or "png"
    place = settings.output or f"{_folder_of_figures(settings.run)}/{spec.name}.{ending}"
    if settings.format and not place.endswith(f".{ending}"):
        place = f"{place}.{ending}"
    figure = draw_figure(spec, run, given)
    path = user_path(place)
    require_target(path)
    save_figure(figure, path)
    print(path)
    return 0


def _plot_all(settings: PlotSettings) -> int:
    from attention_plasticity.figures.registry import left_out_lines
    from attention_plasticity.figures.saving import save_all
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_toolkit.files import user_path

    run = FinishedRun.open(settings.run)
    folder = user_path(settings.output or _folder_of_figures(settings.run))
    for path in save_all(run, folder, settings.format or "png", **settings.given()):
        print(path)
    for line in left_out_lines(run.select(settings.layers, settings.layer_type, settings.heads)):
        print(f"note: {line}", file=sys.stderr)
    return 0


def _folder_of_figures(run: str) -> str:
    """The folder `figures` in the folder of a run; here for a run at a URL."""
    from qk_toolkit.urls import is_remote

    return "figures" if is_remote(run) else f"{run.rstrip('/')}/figures"


def script(name: str, file: str) -> int:
    """Run a script of `scripts/`, which draws one figure with the settings of the original tool."""
    from qk_toolkit.command_line import guarded
    from qk_toolkit.debugging import debug_flag

    with debug_flag(sys.argv[1:]) as given:
        return guarded(lambda: _script(name, given, Path(file).name), "nothing was written")


def _script(name: str, arguments: Sequence[str], file: str) -> int:
    from attention_plasticity.figures.registry import spec_of
    from attention_plasticity.figures.settings import ScriptSettings

    spec, program = spec_of(name), f"python scripts/{file}"
    example = f"commands to paste:\n  {program} --config configs/plots/smollm2-135m-{name}.yaml\n"
    parser = command_parser(program, f"{spec.shows[:1].upper()}{spec.shows[1:]}.", example)
    settings = command_settings(parser, ScriptSettings, arguments)
    from attention_plasticity.figures.saving import (
        require_display,
        require_target,
        save_figure,
        show_figure,
    )
    from qk_toolkit.files import user_path

    if settings.output is None:
        figure = _drawn(spec, settings)  # first: a wrong path is reported before a missing display
        require_display()
        show_figure(figure)
        return 0
    path = user_path(settings.output)
    require_target(path)
    save_figure(_drawn(spec, settings), path)
    print(path)
    return 0


def _drawn(spec: Spec, settings: ScriptSettings) -> Any:
    """The figure of a script: of buckets, unless another plasticity is asked for."""
    from attention_plasticity.figures.draw import draw_figure
    from attention_plasticity.figures.script_tables import opened

    options = {"color": "layer", **settings.options} if "color" in spec.taken else settings.options
    run = opened(settings, spec.table)
    if "plasticity" in spec.taken and options.get("plasticity") is None:
        alone = run.alone is not None and run.alone[0] == "bins"
        options["plasticity"] = "position" if alone else "bucket"
    has_buckets = settings.bucket_type is not None or settings.bucket_min_size is not None
    if has_buckets and options.get("plasticity") == "position":
        raise ConfigError("bucket_type: is of buckets, not of bins; leave it out")
    return draw_figure(spec, run, options, at_starts=has_buckets)
