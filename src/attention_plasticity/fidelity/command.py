"""The verb `fidelity`: how well scores rank keys without a query."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from qk_toolkit.command_line import allow_closed_stdout, command_parser, command_settings
from qk_toolkit.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from attention_plasticity.fidelity.outputs import ScoreMeans
    from attention_plasticity.fidelity.run import FidelityOutcome

_PROGRAM = "attention-plasticity fidelity"
_STORY = """\
Measure how well scores rank the keys of a cache without a query: Q-Filters, Expected Attention,
TriAttention and others. The scores come from queries of other texts. They are compared with the
attention that keys receive from later queries of their own text. The dump needs attention columns.

The folder gets head_fidelity.csv and fidelity.json. It can be that of an analysis of the same dump.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity fidelity path/to/dump --output_dir results/dump
  attention-plasticity fidelity path/to/dump --output_dir results/dump --layers 0-3 --near 256

A command that was interrupted continues when it is repeated (without --overwrite).
Exit codes: 0 success, 1 some key heads failed, 2 wrong usage or config, 130 interrupted.
"""
_LIMITS = ("best_static", "best_per_query")


def fidelity(arguments: Sequence[str]) -> int:
    """Measure, write the files and print the means."""
    from attention_plasticity.fidelity.settings import FidelityConfig
    from attention_plasticity.run.worker import MEMORY_VARIABLES, THREAD_VARIABLES

    dumps = list(takewhile(lambda word: not word.startswith("-"), arguments))
    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} DUMP [--FIELD VALUE …]"
    config = command_settings(parser, FidelityConfig, arguments[len(dumps) :], section="fidelity")
    if len(dumps) > 1:
        raise ConfigError(f"{dumps[1]!r:.60}: expected one dump; measure one after the other")
    if dumps:
        config = config.model_copy(update={"dump": dumps[0]})
    for name, value in {**dict.fromkeys(THREAD_VARIABLES, "1"), **MEMORY_VARIABLES}.items():
        os.environ.setdefault(name, value)  # before numpy is imported; a user's own setting stays

    from attention_plasticity.fidelity.run import measure_fidelity
    from qk_toolkit.terminal import TerminalWatcher, command_console

    outcome = measure_fidelity(config, TerminalWatcher())
    with allow_closed_stdout():
        print_fidelity(outcome, command_console())
    return 1 if outcome.failures else 0


def print_fidelity(outcome: FidelityOutcome, console: Console) -> None:
    """Print the means over key heads, the failures and the files."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from attention_plasticity.metrics import FIDELITY
    from attention_plasticity.run.outputs import FIDELITY_INFO
    from attention_plasticity.tables.names import SCORE_WORDS
    from qk_toolkit.formatting import count
    from qk_toolkit.terminal import print_line

    if outcome.means:
        heads = count(outcome.key_heads, "key head")
        title = f"Attention that scores keep, and their rank correlation; mean over {heads}"
        table = Table(box=box.SIMPLE, title=title, title_justify="left")
        table.add_column("score", no_wrap=True)
        for name in ("Spearman", "kept with 50 %", "25 %", "10 % of keys"):
            table.add_column(name, justify="right")
        for means in in_order(outcome.means):
            if means.score == _LIMITS[0]:
                table.add_section()
            words = SCORE_WORDS[means.score] + " × ‖v‖" * means.value_norm
            table.add_row(words, *(_shown(mean.value) for mean in means.numbers.values()))
        console.print(table)
    if outcome.failures:
        total = outcome.key_heads + len(outcome.failures)
        failed = f"{len(outcome.failures)} of {count(total, 'key head')} failed"
        console.print(Text(failed, "bold red"))
        for one in outcome.failures:
            console.print(f"  layer {one['layer']}, key head {one['k_head']}: {one['reason']}")
    names = [FIDELITY.file, FIDELITY_INFO] if outcome.means else [FIDELITY_INFO]
    for label, name in zip(("Files", ""), names, strict=False):
        print_line(console, label, str(outcome.folder / name))


def in_order(means: Sequence[ScoreMeans]) -> list[ScoreMeans]:
    """The score that keeps most attention with a quarter of the keys first, the limits last."""
    scores = [one for one in means if one.score not in _LIMITS]
    limits = [one for one in means if one.score in _LIMITS]

    def kept(one: ScoreMeans) -> float:
        value = one.numbers["kept_25"].value
        return math.inf if math.isnan(value) else -value

    return [*sorted(scores, key=kept), *limits]


def _shown(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
