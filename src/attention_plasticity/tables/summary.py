"""The text that `analyze` prints at the end of a run, and with `--dry_run`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.config import RunnerConfig
from attention_plasticity.measure.result import Failure
from attention_plasticity.metrics import ALIGNED_DROP, ATTENDED, METRICS, PHASE, POOLED, TableKind
from attention_plasticity.roles import NAMES, REPEATED_DECIDE, UNSURE
from attention_plasticity.run.fingerprints import RunFacts
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.head_means import MeanEstimate
from attention_plasticity.run.merging import ShardOutcome
from attention_plasticity.run.outputs import OutputPaths
from attention_plasticity.run.plan import Estimate, Plan, format_heads, split_groups
from attention_plasticity.run.records import FinishedHeads, Metrics
from attention_plasticity.run.runner import Refused
from attention_plasticity.tables.baselines import baseline_lines
from attention_plasticity.tables.drop_text import significant_drops
from attention_plasticity.tables.head_roles import repeated_decides
from attention_plasticity.tables.intervals import head_half_width, mean_half_width
from attention_plasticity.tables.layer_types import type_words
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    FIFTH_WORDS,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity_of_rows,
)
from attention_plasticity.tables.names import pair_words
from qk_dump.layout import Dump
from qk_toolkit.errors import OutputError, StoreError, ToolkitError
from qk_toolkit.formatting import count, index_ranges
from qk_toolkit.terminal import command_console, print_line

_EXTREMES = 5
_HEADINGS = {
    **{shown.level: "plasticity" for shown in (AT_ONE_POSITION, OVER_BUCKETS)},
    ALIGNED_DROP: "drop",
    PHASE: "rotary phase",
}
"""Headings of columns below a title that says which plasticity they have."""
_MOST_NAMES = 4
_EXPECTED = ("single_example is set",)
"""Reasons of missing values that the user chose by a setting."""


def print_summary(
    outcome: Outcome, console: Console | None = None, *, with_next: bool = True
) -> None:
    """Print mean plasticity, its drop, extreme heads, warnings, failures and files.

    `with_next`: also the commands for the figures and the page.
    """
    console = console or command_console()
    metrics = outcome.metrics
    if metrics:
        means, shown = outcome.means.estimates, main_plasticity_of_rows(metrics)
        heads, influences = pd.DataFrame(metrics), _table_of(outcome, "influences")
        _print_level(means, shown, outcome.facts, console)
        for line in baseline_lines(outcome.paths.folder, shown):
            console.print(line, markup=False)
        _print_advice(means[shown.level], heads, outcome.facts, console)
        _print_position(metrics, means, console)
        if shown is AT_ONE_POSITION:
            _print_drop(means, significant_drops(heads, influences), console)
        _print_layer_types(outcome.means.by_layer_type, shown, console)
        _print_extremes(heads, influences, shown, console)
        _print_attention(means, outcome.facts.settings.distant_from, console)
        _print_roles(outcome.roles, _table_of(outcome, "roles"), console)
    for warning in outcome.warnings:
        console.print(Text.assemble((f"{warning.label:<13}", "bold yellow"), warning.text))
    _print_missing(outcome, console)
    _print_not_captured(outcome.facts, console)
    if outcome.failures:
        _print_failures(outcome.failures, len(outcome.facts.heads), console)
    console.print()
    files = outcome.paths.all if metrics else (outcome.paths.run,)
    for label, path in zip(["Files", *[""] * len(files)], files, strict=False):
        print_line(console, label, outcome.paths.shown(path))
    if metrics and with_next:
        place = shlex.quote(outcome.paths.place)
        print_line(console, "Next", f"attention-plasticity report {place}")
        print_line(console, "", f"attention-plasticity plot all {place}")


def _table_of(outcome: Outcome, kind: TableKind) -> pd.DataFrame | None:
    """A table of the run; None if it has none."""
    path: Path | None = outcome.paths.tables.get(kind)
    return pd.read_csv(path) if path is not None and path.exists() else None


def print_several(outcomes: Sequence[Outcome | Refused]) -> int:
    """Print a line per run, and the failures. Returns the exit code."""
    console = command_console()
    console.print()
    table = Table(box=box.SIMPLE)
    table.add_column("run")
    for name in ("heads", "failed", "plasticity", "drop"):
        table.add_column(name, justify="right")
    table.add_column("")
    for outcome in outcomes:
        if isinstance(outcome, Outcome) and outcome.metrics:
            means = outcome.means.estimates
            numbers = (f"{len(outcome.metrics):,}", f"{len(outcome.failures):,}")
            shown = main_plasticity_of_rows(outcome.metrics)
            values = _level_and_drop(means, shown, len(outcome.metrics))
            table.add_row(Text(outcome.paths.place), *numbers, *values, shown.words)
    console.print(table)
    failed = 0
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            failed += 1
            where = outcome.config.dataset_local_root
            print_line(console, _refusal_label(outcome.reason), f"{where}: {outcome.reason}")
        elif outcome.failures:
            failed += 1
            print_line(console, "Failures", f"{outcome.paths.place}: see run.json")
    return 1 if failed else 0


def _refusal_label(reason: ToolkitError) -> str:
    if isinstance(reason, StoreError):
        return "Not sent"
    return "Not written" if isinstance(reason, OutputError) else "Not analysed"


def print_shard(outcome: ShardOutcome) -> None:
    """Print what a shard has done, and what to do next."""
    console = command_console()
    if outcome.failures:
        _print_failures(outcome.failures, outcome.finished + len(outcome.failures), console)
    print_line(console, "Finished", f"{count(outcome.finished, 'head')} of {outcome.shard}")
    print_line(
        console,
        "Recorded",
        f"{outcome.recorded:,} of {count(outcome.heads, 'head')} of the run in {outcome.place}",
    )
    print_line(console, "Next", f"when all shards are finished: {_merge_command(outcome)}")


def _merge_command(outcome: ShardOutcome) -> str:
    return f"attention-plasticity merge {shlex.quote(outcome.place)}"


def print_plan(
    dump: Dump,
    plan: Plan,
    paths: OutputPaths,
    estimate: Estimate,
    earlier: FinishedHeads,
    config: RunnerConfig,
) -> None:
    """Print what a run would do."""
    console = command_console()
    print_line(console, "Dump", str(dump.path))
    print_line(console, "Layout", str(plan.layout))
    heads, keys = count(len(plan.heads), "query head"), count(len(plan.groups), "key head")
    print_line(console, "To analyse", f"{heads} of {keys}")
    print_line(console, "Not captured", format_heads(plan.not_captured) or "none")
    finished = len(earlier.metrics.keys() & set(plan.heads))
    print_line(console, "Finished", f"{count(finished, 'head')}, by an earlier run in this folder")
    for note in earlier.notes:
        print_line(console, "", note)
    print_line(console, "Cells", f"up to {estimate.cells:,} of query bucket × key bucket per head")
    print_line(console, "Rows", f"{estimate.rows:,} in the files, {estimate.rows_used:,} used")
    workers = min(config.workers, len(split_groups(list(plan.groups), config.workers)))
    each = estimate.worker_memory / 2**20
    print_line(
        console,
        "Memory",
        f"about {each:,.0f} MB per worker, {count(workers, 'worker')}: {workers * each:,.0f} MB",
    )
    print_line(console, "Output", paths.place)
    for problem in estimate.problems:
        print_line(console, "Will fail", problem)
    if earlier.conflict:
        print_line(console, "Refused", earlier.conflict)
    console.print("Nothing was computed or written.")


def mean_of(metrics: Sequence[Metrics], column: str) -> float:
    """Mean over the heads that have a value."""
    known = [row[column] for row in metrics if not math.isnan(row[column])]
    return sum(known) / len(known) if known else math.nan


def _print_level(
    means: dict[str, MeanEstimate], shown: PlasticityColumns, facts: RunFacts, console: Console
) -> None:
    level, pair_sampling = means[shown.level], facts.settings.pair_sampling
    console.print()
    console.print(
        Text.assemble(
            ("Attention plasticity ", "bold"), (_estimate(level), "bold green"), f" {shown.words}"
        )
    )
    console.print(
        f"mean over {level.over}; "
        "1: the query decides which key wins, 0: the order of keys is fixed"
    )
    if shown is AT_ONE_POSITION:
        _print_phase(means, facts, console)
    pairs = pair_words(pair_sampling, shown is AT_ONE_POSITION)
    console.print(f"key pairs: {pairs} (pair_sampling: {pair_sampling})")
    if not math.isnan(level.standard_error):
        over = "texts" if level.eligible is None else "texts and the choice of heads"
        console.print(f"± is half of the 95 % interval over {over}")


def _print_advice(
    level: MeanEstimate, heads: pd.DataFrame, facts: RunFacts, console: Console
) -> None:
    """What the error of the mean comes from, and how it becomes smaller."""
    half, number = mean_half_width(level), (facts.input.get("texts") or {}).get("count")
    if math.isnan(half):
        return
    texts = count(number, "text") if number else f"{level.groups} groups of texts"
    keys = f"{heads['n_k_tokens'].mean():,.0f} keys per head"
    text = f"error of the mean ± {half:.3f} from {texts} and {keys}; "
    if level.head_variance > level.text_error**2:
        text += "most of it is the choice of heads: capture more heads"
    else:
        text += "about 4 times as many texts halve it"
    console.print(text)


def _print_phase(means: dict[str, MeanEstimate], facts: RunFacts, console: Console) -> None:
    """Plasticity with the rotation of RoPE, and what the rotation adds, on one line."""
    pooled, phase, buckets = means[POOLED], means[PHASE], means[OVER_BUCKETS.level]
    size = f" of {facts.bins[0]:,} tokens" if facts.bins else ""
    console.print(
        f"over a bin{size} {_estimate(pooled)}, of which {_estimate(phase)} is rotary phase; over "
        f"a bucket (ap_overall) {_of_other_heads(buckets, pooled.heads)}"
    )


def _print_position(
    metrics: Sequence[Metrics], means: dict[str, MeanEstimate], console: Console
) -> None:
    """Share of position in the queries, as captured and before RoPE."""
    shown = METRICS["q_R2_total"].show(mean_of(metrics, "q_R2_total"))
    heads = sum(not math.isnan(row["q_R2_total"]) for row in metrics)
    console.print(
        f"position explains {shown} of the variance of the queries (mean over "
        f"{count(heads, 'head')}); this includes the rotation of RoPE"
    )
    before = means["q_R2_unrotated"]
    if before.heads:
        console.print(
            f"without the rotation it explains {_estimate(before)} (mean over {before.over}): the "
            "drift of their content"
        )


def _print_drop(means: dict[str, MeanEstimate], significant: str | None, console: Console) -> None:
    """Plasticity in the first and the last fifth, and the drop between them."""
    drop = means[ALIGNED_DROP]
    if math.isnan(drop.value):
        return
    ends = zip(FIFTH_WORDS, AT_ONE_POSITION.fifths, strict=True)
    told = ", ".join(f"{name} {_of_other_heads(means[one], drop.heads)}" for name, one in ends)
    console.print()
    console.print(
        f"Drop over the context {_estimate(drop)}: {told} of the longest text; mean over "
        f"{drop.over}"
    )
    if significant is not None:
        console.print(significant)


def _print_layer_types(
    means: dict[str, dict[str, MeanEstimate]], shown: PlasticityColumns, console: Console
) -> None:
    """Separate means of full attention, sliding windows and so on, if there are several types."""
    if len(means) < 2:
        return
    console.print()
    title = f"By type of layer, {shown.words}"
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    table.add_column("type")
    for name in ("heads", "plasticity", "drop"):
        table.add_column(name, justify="right")
    for layer_type, found in means.items():
        level = found[shown.level]
        values = _level_and_drop(found, shown, level.heads)
        table.add_row(type_words(layer_type), _heads(level), *values)
    console.print(table)


def _level_and_drop(
    means: dict[str, MeanEstimate], shown: PlasticityColumns, heads: int
) -> tuple[str, str]:
    """Plasticity and its drop; a dash if this plasticity has no drop."""
    drop = "–" if shown.drop is None else _of_other_heads(means[shown.drop], heads)
    return _of_other_heads(means[shown.level], heads), drop


def _heads(mean: MeanEstimate) -> str:
    """`6`, or `6 of 270` if the heads were sampled at random."""
    return f"{mean.heads:,}" + (f" of {mean.eligible:,}" if mean.eligible else "")


def _of_other_heads(mean: MeanEstimate, heads: int) -> str:
    """A mean, with its number of heads if this is not that of the row."""
    number = "" if mean.heads in (0, heads) else f" ({count(mean.heads, 'head')})"
    return _estimate(mean) + number


def _estimate(mean: MeanEstimate) -> str:
    return _with_half(mean.value, mean_half_width(mean))


def _with_half(value: float, half: float, name: str = "ap_overall") -> str:
    """`0.687 ± 0.006`; without half of the interval if it is not known."""
    text = METRICS[name].show(value)
    return text if math.isnan(half) else f"{text} ± {half:.3f}"


def _print_extremes(
    heads: pd.DataFrame,
    influences: pd.DataFrame | None,
    shown: PlasticityColumns,
    console: Console,
) -> None:
    """The heads with the largest and the smallest plasticity."""
    measured = [shown.level, *filter(None, [shown.drop])]
    measured.append(PHASE if shown is AT_ONE_POSITION else "q_R2_total")
    cells = {name: [str(number) for number in heads[name]] for name in ("layer", "q_head")}
    for name in measured:
        halves = head_half_width(heads, name, influences)
        pairs = zip(heads[name].tolist(), halves.tolist(), strict=True)
        cells[name] = [_with_half(value, half, name) for value, half in pairs]
    level = heads[shown.level].dropna()
    ranked = level.sort_values(ascending=False, kind="stable").index.tolist()
    if len(ranked) <= 2 * _EXTREMES:
        groups = [("Heads, most plastic first", ranked)]
    else:
        groups = [
            ("Most plastic heads", ranked[:_EXTREMES]),
            ("Least plastic heads", ranked[-_EXTREMES:]),
        ]
    for title, chosen in groups:
        console.print()
        table = Table(box=box.SIMPLE, title=f"{title}, {shown.words}", title_justify="left")
        for name in cells:
            table.add_column(_HEADINGS.get(name, METRICS[name].label), justify="right")
        for row in chosen:
            table.add_row(*(column[row] for column in cells.values()))
        console.print(table)


def _print_attention(means: dict[str, MeanEstimate], distant_from: int, console: Console) -> None:
    """Where the attention goes, and plasticity of keys that receive attention."""
    sinks, far, attended = (means[name] for name in ("attn_sink_mass", "attn_far_mass", ATTENDED))
    if sinks.heads:
        console.print(
            f"Attention: {_estimate(sinks)} on the first four tokens of a text, {_estimate(far)} "
            f"on other tokens at a distance of {distant_from:,} or more; means over "
            f"{sinks.over}"
        )
    if attended.heads:
        console.print(
            "Plasticity of keys in proportion to their attention, at one position: "
            f"{_estimate(attended)}; mean over {attended.over}"
        )


def _print_roles(roles: Mapping[str, int], table: pd.DataFrame | None, console: Console) -> None:
    """How many heads have each role, and what decides those that are unsure."""
    if not roles:
        return
    counts = [f"{name} {roles[name]}" for name in (*NAMES, UNSURE) if roles.get(name)]
    console.print(f"Roles of heads: {', '.join(counts)} (head_roles.csv)")
    undecided = 0 if table is None else int(repeated_decides(table).sum())
    if undecided:
        heads = count(undecided, "head")
        console.print(f"{REPEATED_DECIDE} in {heads}; give a dump of them with --repeated")


def _print_missing(outcome: Outcome, console: Console) -> None:
    """Values of heads that are missing, with the reason, unless a warning has the reason."""
    by_reason: dict[str, list[str]] = {}
    no_errors = any(warning.kind == "no_errors" for warning in outcome.warnings)
    for missing in outcome.missing:
        told = missing.reason in _EXPECTED or any(
            missing.reason in warning.text for warning in outcome.warnings
        )
        if missing.table == "head_metrics" and not told:
            heads = count(missing.heads, "head")
            named = by_reason.setdefault(missing.reason, [])
            shown = [name for name in missing.metrics if not (no_errors and METRICS[name].error_of)]
            named += [f"{name} ({heads})" for name in shown]
    for reason, names in by_reason.items():
        if not names:
            continue
        more = len(names) - _MOST_NAMES
        named = names[:_MOST_NAMES] + ([f"{more:,} more"] if more > 0 else [])
        text = f"{', '.join(named)}: {reason}."
        console.print(Text.assemble((f"{'Missing':<13}", "bold"), text))


def _print_not_captured(facts: RunFacts, console: Console) -> None:
    missing = [(layer, q_head) for layer, q_head in facts.not_captured]
    if missing:
        console.print(
            f"{count(len(missing), 'query head')} not in the dump, left out: "
            f"{format_heads(missing)}",
            markup=False,
        )


def _print_failures(failures: Sequence[Failure], total: int, console: Console) -> None:
    console.print()
    console.print(Text(f"{len(failures)} of {count(total, 'head')} failed", "bold red"))
    console.print(Text("  layer  heads  reason", "bold"))
    by_reason: dict[tuple[int, str], list[int]] = {}
    for failure in failures:
        by_reason.setdefault((failure.layer, failure.reason), []).append(failure.q_head)
    for (layer, reason), heads in by_reason.items():
        console.print(Text(f"  {layer:>5}  {index_ranges(heads):>5}  {reason}"))
