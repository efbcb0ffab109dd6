"""The verb `budget`: how many keys each key head may keep, from a finished run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from qk_toolkit.command_line import allow_closed_stdout, command_parser
from qk_toolkit.errors import ConfigError
from qk_toolkit.flags import parse_flags

_PROGRAM = "attention-plasticity budget"
_STORY = """\
Divide a share of all keys among the key heads of a model: a head whose choice of keys depends more
on the query keeps more keys. RUN is a finished analysis with key_head_metrics.csv. OUT gets
budget.csv, budget.yaml, the gates of DuoAttention (full_attention_heads.tsv and config.json), and
PROVENANCE.json.

  static_error           queries of the group that a fixed order of two earlier keys cannot predict
  static_error_attended  the same for keys in proportion to the attention that they receive
  far                    attention to keys 256 tokens or more before the query, without sinks
  ap_attended            attended plasticity, mean over the query heads of a key head
  ap_aligned             plasticity at one position, mean over the query heads
  ap_overall             plasticity over a bucket, mean over the query heads
  uniform                the same budget for all heads; no gates
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity budget results/qwen3 --keep 0.25 --output_dir budgets/qwen3
  attention-plasticity budget results/qwen3 --keep 0.5 --order far --output_dir budgets/far
"""
_MOST_SPREAD = 1.0


def budget(arguments: Sequence[str]) -> int:
    """Write the folder of a budget, and print its extremes and its path."""
    given = _given(arguments)
    from attention_plasticity.budget.division import divide
    from attention_plasticity.budget.files import MADE_BY, budget_files, provenance
    from attention_plasticity.budget.orders import ordered_heads
    from attention_plasticity.budget.text import print_budget
    from attention_plasticity.export.folder import require_target, write_folder
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_toolkit.files import resolved, user_path
    from qk_toolkit.terminal import command_console

    target, overwrite = resolved(user_path(given["output_dir"])), given["overwrite"]
    require_target(target, overwrite=overwrite, made_by=MADE_BY)
    run = FinishedRun.open(given["run"])
    division = divide(ordered_heads(run, given["order"]), given["keep"], given["spread"])
    command = shlex.join([*_PROGRAM.split(), *arguments])
    files, facts = budget_files(run, division), provenance(run, division, command)
    write_folder(target, files, facts, overwrite=overwrite)
    with allow_closed_stdout():
        print_budget(run, division, command_console())
        print(user_path(given["output_dir"]))
    return 0


def _given(arguments: Sequence[str]) -> dict[str, Any]:
    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} RUN --keep X --output_dir OUT [--order ORDER] [--spread X] …"
    parser.add_argument("run", metavar="RUN", help="folder or URL of an analysis")
    parser.add_argument(
        "--keep", metavar="X", required=True, help="mean share of keys to keep, above 0, at most 1"
    )
    parser.add_argument("--output_dir", metavar="OUT", required=True, help="folder to write")
    parser.add_argument(
        "--order",
        default="static_error",
        metavar="ORDER",
        help="value that decides which heads keep more, see above [static_error]",
    )
    parser.add_argument(
        "--spread",
        default="0.8",
        metavar="X",
        help="the head with the largest value gets 1 + X of the mean budget, the one with the "
        "smallest 1 - X [0.8]",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier budget")
    given: dict[str, Any] = parse_flags(parser, arguments)
    given["order"] = _order(given["order"])
    given["keep"] = _number("keep", given["keep"])
    if not 0.0 < given["keep"] <= 1.0:
        raise ConfigError(f"--keep: expected a share above 0 and at most 1, got {given['keep']:g}")
    given["spread"] = _number("spread", given["spread"])
    if not 0.0 <= given["spread"] < _MOST_SPREAD:
        raise ConfigError(f"--spread: expected a number from 0 to below 1, got {given['spread']:g}")
    return given


def _order(name: str) -> str:
    from attention_plasticity.budget.evidence import EVIDENCE
    from qk_toolkit.settings import nearest

    if name in EVIDENCE:
        return name
    hint = nearest(name, EVIDENCE, otherwise=f"; there are {', '.join(EVIDENCE)}")
    raise ConfigError(f"--order: {name!r:.60}: unknown order{hint}")


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"--{name}: expected a number, got {text!r:.60}")
    return value
