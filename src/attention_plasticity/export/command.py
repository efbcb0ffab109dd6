"""The verb `export`: files that other tools load, made from a dump or from a finished run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attention_plasticity.export.settings import FORMATS, ExportSettings
from qk_toolkit.command_line import FlagParser, allow_closed_stdout, command_parser
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.flags import add_flags, add_switch, is_on, parse_flags
from qk_toolkit.settings import settings_from

if TYPE_CHECKING:
    from attention_plasticity.export.folder import Content
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_toolkit.watcher import Watcher

_PROGRAM = "attention-plasticity export"
_STORY = """\
Write files that other tools load: statistics of heads from a dump, or budgets and gates of key
heads from a finished analysis. OUT is a new folder. PROVENANCE.json in it has the model, the texts,
the rules, and standard errors of heads.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity export results/qwen3 budgets/qwen3 --to kvpress-budget
  attention-plasticity export results/qwen3 gates/qwen3 --to duo --share 0.5
  attention-plasticity export path/to/dump stats/qwen3 --to expected-attention

Exit codes: 0 success, 1 the files cannot be written, 2 wrong usage or config, 130 interrupted.
"""


def export(arguments: Sequence[str]) -> int:
    """Write the folder of a format and print its path."""
    _use_one_thread()
    flags: dict[str, Any] = parse_flags(_parser(), arguments)
    overwrite = is_on(flags, "overwrite")
    place, folder, _ = (flags.pop(name) for name in ("source", "out", "overwrite"))
    settings = settings_from(ExportSettings, flags=flags)
    from attention_plasticity.export.folder import require_target, write_folder
    from qk_toolkit.files import resolved, user_path
    from qk_toolkit.terminal import TerminalWatcher, command_console

    out = user_path(folder)
    target = resolved(out)
    require_target(target, overwrite=overwrite)
    of = _from_dump if settings.format.reads == "dump" else _from_run
    origin, content = of(place, settings, TerminalWatcher())
    command = shlex.join([*_PROGRAM.split(), *arguments])
    facts = {"format": settings.to, **origin}
    write_folder(target, content, facts, command, overwrite=overwrite)
    with allow_closed_stdout():
        if content.show is not None:
            content.show(out, command_console())
        print(out)
    return 0


def _parser() -> FlagParser:
    lines = [_STORY]
    for reads in ("dump", "run"):
        lines.append(f"  from a {reads}:")
        for name, one in FORMATS.items():
            if one.reads == reads:
                lines.append(f"  {name:<18}  {one.help}")
        lines.append("")
    parser = command_parser(_PROGRAM, "\n".join(lines), _EXAMPLES)
    parser.usage = f"{_PROGRAM} DUMP|RUN OUT --to FORMAT [--missing mean] [--overwrite] …"
    parser.add_argument("source", metavar="DUMP|RUN", help="folder or URL; a dump also on the Hub")
    parser.add_argument("out", metavar="OUT", help="folder to write")
    add_switch(parser, "overwrite", "replace an earlier export")
    add_flags(parser, ExportSettings)
    return parser


def _use_one_thread() -> None:
    """Before numpy is imported: sums of small matrices are faster in one thread.

    Threads of a busy machine wait for each other. A user's own setting stays.
    """
    from attention_plasticity.run.worker import THREAD_VARIABLES

    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")


def _from_dump(
    place: str, settings: ExportSettings, watcher: Watcher
) -> tuple[dict[str, Any], Content]:
    """Where the statistics come from, and the files."""
    from attention_plasticity.export.provenance import facts_of_dump
    from attention_plasticity.export.source import ExportSource
    from qk_dump.rotary_file import with_rotary

    dump = with_rotary(_opened(place, settings, watcher.note), settings.rotary)
    source = ExportSource.of(dump, settings.missing, settings.max_tokens_per_head, watcher)
    return facts_of_dump(source), settings.format.make(source, settings)


def _from_run(
    place: str, settings: ExportSettings, watcher: Watcher
) -> tuple[dict[str, Any], Content]:
    """Where the values come from, and the files."""
    from attention_plasticity.export.order import ordered_heads
    from attention_plasticity.export.provenance import facts_of_run

    run: FinishedRun = _opened(place, settings, watcher.note)
    order = settings.order or settings.format.order
    heads = ordered_heads(run, order, settings.missing, watcher.note)
    return facts_of_run(run, watcher.note), settings.format.make(heads, settings)


def _opened(place: str, settings: ExportSettings, note: Callable[[str], None]) -> Any:
    """The dump or the run that the format reads.

    Raises a `ConfigError` that says how to make one if the place has the other.
    """
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_dump.hub.place import is_hub_path
    from qk_dump.source import open_dump

    needed = f"--to {settings.to} needs a"
    a_dump = (
        f"{place}: is a dump; {needed} finished run. Make it with attention-plasticity analyze "
        f"{place} RUN"
    )
    of_dump = settings.format.reads == "dump"
    if is_hub_path(place) and not of_dump:
        raise ConfigError(a_dump)
    try:
        return open_dump(place, note=note) if of_dump else FinishedRun.open(place)
    except ToolkitError as error:
        if is_hub_path(place):
            raise
        try:
            other = FinishedRun.open(place) if of_dump else open_dump(place)
        except ToolkitError:
            raise error from None
        if not isinstance(other, FinishedRun):
            raise ConfigError(a_dump) from error
        own = (other.info.get("input") or {}).get("path")
        raise ConfigError(
            f"{place}: is a finished run; {needed} dump: give that of the run"
            f"{f', {own}' if own else ''}, or make one with attention-plasticity capture"
        ) from error
