"""The verb `power`: where the error of a run comes from, and what would reduce it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qk_toolkit.command_line import command_parser
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.flags import parse_flags
from qk_toolkit.urls import is_url

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.head.texts import DumpTexts
    from attention_plasticity.numeric.errors.variance_parts import VarianceParts
    from attention_plasticity.power.prediction import RowCounts
    from attention_plasticity.tables.finished_run import FinishedRun
    from attention_plasticity.tables.main_plasticity import PlasticityColumns
    from qk_dump.layout import Dump

_PROGRAM = "attention-plasticity power"
_STORY = """\
Show where the standard error of a head comes from (texts, queries, keys, key pairs), which error to
expect with other sizes of the sample, and the cheapest change that reaches a wanted error. The dump
of the run is read again.
"""
_EXAMPLES = """\
commands to paste:
  attention-plasticity power results/qwen3-0.6b
  attention-plasticity power results/qwen3-0.6b --wanted 0.005
"""


def power(arguments: Sequence[str]) -> int:
    """Print the parts of the error, predictions and the cheapest change."""
    given = _given(arguments)
    from attention_plasticity.power.text import print_power
    from attention_plasticity.tables.finished_run import FinishedRun
    from qk_toolkit.terminal import command_console

    run = FinishedRun.open(given["run"])
    shown = _shown(run)
    parts, rows = _parts_of(run, given["heads"], given["dump"], shown)
    heads, drop_error = len(run.head_metrics), _drop_error(run, shown)
    print_power(parts, heads, rows, given["wanted"], shown, command_console(), drop_error)
    return 0


def _drop_error(run: FinishedRun, shown: PlasticityColumns) -> float | None:
    """Root mean square of the standard errors of the drop of heads; None if no head has one."""
    name = f"{shown.drop}_se"
    if name not in run.head_metrics:
        return None
    errors = run.head_metrics[name].dropna()
    return math.sqrt(float((errors**2).mean())) if len(errors) else None


def _shown(run: FinishedRun) -> PlasticityColumns:
    """Plasticity at one position if a head has its error, else plasticity over a bucket."""
    from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, OVER_BUCKETS

    error = f"{AT_ONE_POSITION.level}_se"
    known = error in run.head_metrics and bool(run.head_metrics[error].notna().any())
    return AT_ONE_POSITION if known else OVER_BUCKETS


def _parts_of(
    run: FinishedRun, most: int, place: str | None, shown: PlasticityColumns
) -> tuple[list[VarianceParts], RowCounts]:
    """Parts of the error of at most `most` heads of a run, evenly spaced, and their rows."""
    from attention_plasticity.config import ANALYSIS_FIELDS, make_config
    from attention_plasticity.head_analysis import head_variance_parts
    from attention_plasticity.power.prediction import RowCounts
    from attention_plasticity.tables.csv_tables import require_columns
    from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
    from qk_dump.rotary_file import with_rotary
    from qk_toolkit.terminal import TerminalWatcher

    recorded = run.settings
    if not recorded:
        raise ConfigError(
            f"{run.place}: has no run.json, so its settings are not known; run the analysis again"
        )
    if recorded.get("single_example"):
        raise ConfigError(
            f"{run.place}: was made with single_example, so its texts are not known; run the "
            "analysis without it"
        )
    if recorded.get("pair_sampling") == "attended":
        raise ConfigError(
            f"{run.place}: was made with attended pairs; their error cannot be split into parts. "
            "Run the analysis with another pair_sampling"
        )
    fields = {name: recorded[name] for name in ANALYSIS_FIELDS if name in recorded}
    config = make_config(fields | {"error_bars": True, "rotary": recorded.get("rotary")})
    at_one_position = shown is AT_ONE_POSITION
    dump = _open(run, place)
    if at_one_position:
        dump = with_rotary(dump, config.rotary)
    require_columns(run.head_metrics, ("layer", "q_head", "k_head"), run.path("head_metrics"))
    heads = run.head_metrics[["layer", "q_head", "k_head"]].to_numpy().tolist()
    texts = _texts(run, dump, {layer for layer, _, _ in heads}, config)
    step = max(1, math.ceil(len(heads) / most))
    watcher = TerminalWatcher()
    chosen = heads[::step]
    watcher.start("heads", len(chosen), 0)
    found = []
    try:
        for layer, q_head, k_head in chosen:
            parts = head_variance_parts(
                dump, layer, q_head, k_head, config, texts, at_one_position=at_one_position
            )
            if parts is not None:
                found.append(parts)
            watcher.advance()
    finally:
        watcher.stop()
    if not found:
        raise ToolkitError(
            f"{run.place}: no head has a standard error, so there is nothing to predict. "
            f"{_why_no_error(run, dump, texts)}"
        )
    return found, RowCounts.of(found, texts.count, _mean_tokens(dump))


def _why_no_error(run: FinishedRun, dump: Dump, texts: DumpTexts) -> str:
    """What a run without any standard error needs."""
    from attention_plasticity.numeric.errors.text_groups import MIN_GROUPS
    from attention_plasticity.power.prediction import RowCounts

    table, names = run.head_metrics, ("n_q_tokens", "n_k_tokens")
    if texts.count < MIN_GROUPS or not {*names} <= {*table.columns}:
        return "Queries need example_id, and texts of four groups or more."
    queries, keys = (float(table[name].mean()) / texts.count for name in names)
    rows = RowCounts(texts.count, queries, keys, _mean_tokens(dump))
    return f"Queries need example_id, and buckets several rows. {rows.advice()}"


def _mean_tokens(dump: Dump) -> float:
    """Mean number of tokens of the texts; infinite if it is not known."""
    from qk_dump.examples import read_examples
    from qk_toolkit.errors import DumpError

    try:
        table = read_examples(dump.path)
    except DumpError:
        return math.inf
    if table is None or table.schema.names.count("num_tokens") != 1:
        return math.inf
    tokens = [n for n in table.column("num_tokens").to_pylist() if isinstance(n, int) and n > 0]
    return sum(tokens) / len(tokens) if tokens else math.inf


def _open(run: FinishedRun, place: str | None) -> Dump:
    """The dump of a run, from the given place or from where it was."""
    from qk_dump.source import open_dump

    recorded = run.info.get("input") or {}
    known = str(recorded.get("path") or "/nowhere")
    if place is None and not (is_url(known) or Path(known).is_dir()):
        raise ConfigError(
            f"{run.place}: its dump is not at {recorded.get('path') or 'a known place'} any more; "
            "give its folder or URL with --dump"
        )
    return open_dump(place or recorded["path"])


def _texts(run: FinishedRun, dump: Dump, layers: set[int], config: RunnerConfig) -> DumpTexts:
    """The texts of the dump. Prints a note if they are not those of the run."""
    from attention_plasticity.head.rows import run_texts

    texts = run_texts(dump, layers, config)
    recorded = run.texts
    names = ("count", "digest")
    if recorded and {name: recorded[name] for name in names} != (texts.listed or {}):
        print(f"note: {dump.path}: has other texts than the dump of the run", file=sys.stderr)
    return texts


def _given(arguments: Sequence[str]) -> dict[str, Any]:
    parser = command_parser(_PROGRAM, _STORY, _EXAMPLES)
    parser.usage = f"{_PROGRAM} RUN [--wanted ERROR] [--heads N] [--dump PLACE]"
    parser.add_argument("run", metavar="RUN", help="folder of an analysis")
    parser.add_argument("--wanted", metavar="ERROR", help="wanted standard error of a head")
    parser.add_argument("--heads", metavar="N", default="24", help="largest number of heads [24]")
    parser.add_argument("--dump", metavar="PLACE", help="the dump, if it is at another place now")
    given: dict[str, Any] = parse_flags(parser, arguments)
    given["heads"] = _number("--heads", given["heads"], int, "an integer of at least 1")
    if given["wanted"] is not None:
        given["wanted"] = _number("--wanted", given["wanted"], float, "a number above 0")
    return given


def _number(flag: str, text: str, kind: Any, expected: str) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{flag}: expected {expected}, got {text!r}")
    return value
