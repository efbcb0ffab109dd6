"""The verb `export`: files that other tools load, made from a dump or from a finished run."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qk_toolkit.command_line import allow_closed_stdout, command_parser
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.flags import parse_flags

if TYPE_CHECKING:
    from attention_plasticity.export.content import Content
    from attention_plasticity.export.duo import DuoOptions
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_dump.layout import Dump
    from qk_toolkit.watcher import Watcher

OF_DUMP = ("triattention", "expected-attention", "q-filters")
OF_RUN = ("kvpress-budget", "duo")
FORMATS = (*OF_DUMP, *OF_RUN)

_PROGRAM = "attention-plasticity export"
_STORY = """\
Write files that other tools load: statistics of heads from a dump, or budgets and gates of key
heads from a finished analysis. OUT is a new folder. PROVENANCE.json in it has the model, the texts,
the rules, and standard errors of heads.

  from a dump:
  triattention        triattention.pt: mean query per rotary band, for TriAttention
  expected-attention  mean and covariance of queries, for ExpectedAttentionStatsPress of kvpress
  q-filters           one direction per key head, for Q-Filters (QFilterPress of kvpress)

  from a run:
  kvpress-budget      budget.npy: how many keys each key head keeps, for BudgetPress of this package
                      and LUKVPress of kvpress
  duo                 full_attention_heads.tsv: which key heads need full attention
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity export path/to/dump stats/qwen3 --to expected-attention
  attention-plasticity export hf://datasets/owner/name@branch stats/qwen3 --to triattention
  attention-plasticity export results/qwen3 budgets/qwen3 --to kvpress-budget
  attention-plasticity export results/qwen3 gates/qwen3 --to duo --share 0.5
"""
_OF_FORMATS = {
    "max_tokens_per_head": OF_DUMP,
    "rotary": OF_DUMP,
    "order": OF_RUN,
    "rule": ("kvpress-budget",),
    "share": ("duo",),
    "threshold": ("duo",),
    "sink_size": ("duo",),
    "recent_size": ("duo",),
}
"""Flags that only some formats have."""


def export(arguments: Sequence[str]) -> int:
    """Write the folder of a format and print its path."""
    _use_one_thread()
    given = _given(arguments)
    from attention_plasticity.export.folder import require_target, write_folder
    from attention_plasticity.export.provenance import provenance
    from qk_toolkit.files import resolved, user_path
    from qk_toolkit.terminal import TerminalWatcher, command_console

    out, overwrite = user_path(given["out"]), given["overwrite"]
    target = resolved(out)
    require_target(target, overwrite=overwrite)
    of = _from_dump if given["to"] in OF_DUMP else _from_run
    origin, content = of(given, TerminalWatcher())
    command = shlex.join([*_PROGRAM.split(), *arguments])
    facts = provenance(given["to"], origin, content, command)
    write_folder(target, content.files, facts, overwrite=overwrite)
    with allow_closed_stdout():
        if content.show is not None:
            content.show(out, command_console())
        print(out)
    return 0


def _use_one_thread() -> None:
    """Before numpy is imported: sums of small matrices are faster in one thread.

    Threads of a busy machine wait for each other. A user's own setting stays.
    """
    from attention_plasticity.run.worker import THREAD_VARIABLES

    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")


def _from_dump(given: dict[str, Any], watcher: Watcher) -> tuple[dict[str, Any], Content]:
    """Where the statistics come from, and the files."""
    from attention_plasticity.export.expected_attention import expected_attention
    from attention_plasticity.export.provenance import facts_of_dump
    from attention_plasticity.export.q_filters import q_filters
    from attention_plasticity.export.source import ExportSource
    from attention_plasticity.export.triattention import triattention
    from qk_dump.rotary_file import with_rotary

    formats = dict(zip(OF_DUMP, (triattention, expected_attention, q_filters), strict=True))
    dump = with_rotary(_open_dump(given, watcher), given["rotary"])
    rows = given["max_tokens_per_head"]
    source = ExportSource.of(dump, missing=given["missing"], max_rows=rows, watcher=watcher)
    return facts_of_dump(source), formats[given["to"]](source)


def _from_run(given: dict[str, Any], watcher: Watcher) -> tuple[dict[str, Any], Content]:
    """Where the values come from, and the files."""
    from attention_plasticity.export.duo import duo
    from attention_plasticity.export.kvpress_budget import kvpress_budget
    from attention_plasticity.export.order import ordered_heads
    from attention_plasticity.export.provenance import facts_of_run

    heads = ordered_heads(_open_run(given), given["order"], given["missing"], watcher.note)
    of_duo = given["to"] == "duo"
    content = duo(heads, given["duo"]) if of_duo else kvpress_budget(heads, given["rule"])
    return facts_of_run(heads.run), content


def _open_dump(given: dict[str, Any], watcher: Watcher) -> Dump:
    """The dump. Raises a `ConfigError` that says how to make one if the place has a run."""
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_dump.hub.place import is_hub_path
    from qk_dump.source import open_dump

    place = given["source"]
    try:
        return open_dump(place, note=watcher.note)
    except ToolkitError as error:
        if is_hub_path(place):
            raise
        try:
            run = FinishedRun.open(place)
        except ToolkitError:
            raise error from None
        own = (run.info.get("input") or {}).get("path")
        raise ConfigError(
            f"{run.place}: is a finished run; --to {given['to']} needs a dump: give that of the "
            f"run{f', {own}' if own else ''}, or make one with attention-plasticity capture"
        ) from error


def _open_run(given: dict[str, Any]) -> FinishedRun:
    """The run. Raises a `ConfigError` that says how to make one if the place has a dump."""
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_dump.hub.place import is_hub_path
    from qk_dump.source import open_dump

    place = given["source"]
    failure: ToolkitError | None = None
    if not is_hub_path(place):
        try:
            return FinishedRun.open(place)
        except ToolkitError as error:
            failure = error
        try:
            open_dump(place)
        except ToolkitError:
            raise failure from None
    raise ConfigError(
        f"{place}: is a dump; --to {given['to']} needs a finished run. Make it with "
        f"attention-plasticity analyze {place} --output_dir RUN"
    ) from failure


def _given(arguments: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = parse_flags(_parser(), arguments)
    _require_choice("to", given["to"], FORMATS)
    _require_choice("missing", given["missing"], ("refuse", "mean"))
    for name, formats in _OF_FORMATS.items():
        if given[name] is not None and given["to"] not in formats:
            raise ConfigError(f"--{name}: can only be used with --to {' or '.join(formats)}")
    if given["to"] in OF_RUN:
        return {**given, **_of_run(given)}
    given["max_tokens_per_head"] = given["max_tokens_per_head"] or "50000"
    return {**given, "max_tokens_per_head": _integer(given, "max_tokens_per_head", 2)}


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} DUMP|RUN OUT --to FORMAT [--missing mean] [--overwrite] …"
    parser.add_argument("source", metavar="DUMP|RUN", help="folder or URL; a dump also on the Hub")
    parser.add_argument("out", metavar="OUT", help="folder to write")
    parser.add_argument("--to", metavar="FORMAT", required=True, help=", ".join(FORMATS))
    parser.add_argument(
        "--missing",
        metavar="refuse|mean",
        default="refuse",
        help="heads without values: refuse them, or use the mean of other heads (of the layer for "
        "statistics of a dump, of the model for values of a run) [refuse]",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    part = parser.add_argument_group("from a dump")
    part.add_argument(
        "--max_tokens_per_head",
        metavar="N",
        help="largest number of rows per head; larger heads are sampled at random [50000]",
    )
    part.add_argument("--rotary", metavar="FILE", help="rotary records, from add-rotary --output")
    part = parser.add_argument_group("from a run")
    part.add_argument(
        "--order",
        metavar="COLUMN",
        help="the value of a key head: a column with a standard error of key_head_metrics.csv, or "
        "of head_metrics.csv (mean over the query heads), or uniform [aligned_plasticity]",
    )
    part.add_argument(
        "--rule",
        metavar="cube|square|ramp",
        help="with kvpress-budget: keys in proportion to the cube of the value, to its square with "
        "a fifth of the keys divided equally, or linear in its rank [cube for aligned_plasticity, "
        "ramp for other orders]",
    )
    part.add_argument(
        "--share", metavar="X", help="with duo: gate 1 for this share of heads, else 0"
    )
    part.add_argument("--threshold", metavar="X", help="with duo: gate 1 for values from X, else 0")
    part.add_argument("--sink_size", metavar="N", help="with duo: first tokens that are kept [4]")
    part.add_argument(
        "--recent_size", metavar="N", help="with duo: last tokens that are kept [256]"
    )
    return parser


def _of_run(given: dict[str, Any]) -> dict[str, Any]:
    """The order, and the rule of budgets or the choices of gates."""
    from attention_plasticity.export.division import RULES, default_rule
    from attention_plasticity.export.duo import require_gates
    from attention_plasticity.export.order import DEFAULT_ORDER, require_order

    order = require_order(given["order"] or DEFAULT_ORDER)
    if given["to"] == "duo":
        options = _duo_options(given)
        require_gates(order, options)
        return {"order": order, "duo": options}
    rule = given["rule"] or default_rule(order)
    _require_choice("rule", rule, tuple(RULES))
    return {"order": order, "rule": rule}


def _duo_options(given: dict[str, Any]) -> DuoOptions:
    from attention_plasticity.export.duo import DuoOptions

    chosen: dict[str, Any] = {}
    if given["threshold"] is not None:
        chosen["threshold"] = _number(given, "threshold", -math.inf, math.inf, "a number")
    if given["share"] is not None:
        chosen["share"] = _number(given, "share", 0.0, 1.0, "a number from 0 to 1")
    for name, least in (("sink_size", 0), ("recent_size", 1)):
        if given[name] is not None:
            chosen[name] = _integer(given, name, least)
    return DuoOptions(**chosen)


def _require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"--{name}: expected one of {', '.join(choices)}, got {value!r:.60}")


def _integer(given: dict[str, Any], name: str, least: int) -> int:
    text = given[name]
    if not (text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise ConfigError(f"--{name}: expected an integer of at least {least}, got {text!r:.60}")
    return int(text)


def _number(given: dict[str, Any], name: str, least: float, most: float, expected: str) -> float:
    try:
        value = float(given[name])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and least <= value <= most):
        raise ConfigError(f"--{name}: expected {expected}, got {given[name]!r:.60}")
    return value
