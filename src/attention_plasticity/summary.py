"""What a person reads at the end of a run, or instead of one (`--dry_run`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attention_plasticity.config import RunnerConfig
from attention_plasticity.outputs import OutputPaths
from attention_plasticity.plan import Estimate, Plan, format_heads, shared_out
from attention_plasticity.results import Failure, HeadResult
from attention_plasticity.runner import Outcome
from qk_dump.layout import Dump

_FIFTHS = ("ap_first20", "ap_20to40", "ap_40to60", "ap_60to80", "ap_last20")
_FIFTH_NAMES = ("0–20 %", "20–40 %", "40–60 %", "60–80 %", "80–100 %")
_EXTREMES = 5
_BAR = 24


def print_summary(outcome: Outcome, console: Console | None = None) -> None:
    """The run in one screen: level, profile, extreme heads, failures, files."""
    console = console or _console()
    results = outcome.results
    if results:
        _print_level(results, console)
        _print_profile(results, console)
        _print_extremes(results, console)
    _print_not_captured(outcome.plan, console)
    if outcome.failures:
        _print_failures(outcome.failures, len(outcome.plan.heads), console)
    console.print()
    if results:
        _line(console, "Tables", ", ".join(str(path) for path in outcome.paths.all[:3]))
    _line(console, "Run", str(outcome.paths.run))


def print_plan(
    dump: Dump, plan: Plan, paths: OutputPaths, estimate: Estimate, config: RunnerConfig
) -> None:
    """What a run would do."""
    console = _console()
    _line(console, "Dump", str(dump.path))
    _line(console, "Layout", str(plan.layout))
    heads = len(plan.heads)
    _line(
        console, "To analyse", f"{heads} query heads in {len(plan.groups)} groups, one per key head"
    )
    _line(console, "Not captured", str(len(plan.not_captured)))
    _print_not_captured(plan, console)
    _line(console, "Rows", f"{estimate.rows:,} in the files, {estimate.rows_used:,} used")
    workers = min(config.workers, len(shared_out(list(plan.groups), config.workers)))
    each = estimate.worker_memory / 2**20
    _line(
        console,
        "Memory",
        f"about {each:,.0f} MB per worker, {workers} workers: {workers * each:,.0f} MB",
    )
    _line(console, "Output", str(paths.folder))
    for problem in estimate.unreadable:
        _line(console, "Unreadable", problem)
    console.print("Nothing was computed or written.")


def mean_of(results: Sequence[HeadResult], column: str) -> float:
    """Mean over the heads that have a value."""
    known = [r.metrics[column] for r in results if not math.isnan(r.metrics[column])]
    return sum(known) / len(known) if known else math.nan


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _line(console: Console, label: str, text: str) -> None:
    console.print(Text.assemble((f"{label:<13}", "bold"), text))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _print_level(results: Sequence[HeadResult], console: Console) -> None:
    level = mean_of(results, "ap_overall")
    known = sum(not math.isnan(r.metrics["ap_overall"]) for r in results)
    console.print()
    console.print(Text.assemble(("Attention plasticity ", "bold"), (_number(level), "bold green")))
    console.print(
        f"mean over {known} heads; 1: the query decides which key wins, 0: the order is fixed"
    )
    if known < len(results):
        console.print(f"{len(results) - known} heads have no value: no key pair to compare")
    r2 = mean_of(results, "q_R2_total")
    console.print(f"share of the queries' variance explained by position: {_number(r2)}")


def _print_profile(results: Sequence[HeadResult], console: Console) -> None:
    table = Table(box=box.SIMPLE, title="Profile over the context", title_justify="left")
    table.add_column("part")
    table.add_column("plasticity", justify="right")
    table.add_column("")
    for name, column in zip(_FIFTH_NAMES, _FIFTHS, strict=True):
        value = mean_of(results, column)
        bar = "" if math.isnan(value) else "█" * round(_BAR * value)
        table.add_row(name, _number(value), bar)
    console.print(table)
    drop = mean_of(results, "ap_drop")
    if not math.isnan(drop):
        console.print(f"drop from the first to the last fifth: {drop:+.3f}")


def _print_extremes(results: Sequence[HeadResult], console: Console) -> None:
    known = [r for r in results if not math.isnan(r.metrics["ap_overall"])]
    ranked = sorted(known, key=lambda r: -r.metrics["ap_overall"])
    if len(ranked) <= 2 * _EXTREMES:
        groups = [("Heads, most plastic first", ranked)]
    else:
        groups = [
            ("Most plastic heads", ranked[:_EXTREMES]),
            ("Least plastic heads", ranked[-_EXTREMES:]),
        ]
    for title, heads in groups:
        table = Table(box=box.SIMPLE, title=title, title_justify="left")
        for name in ("layer", "head", "plasticity", "drop", "R² of position"):
            table.add_column(name, justify="right")
        for head in heads:
            row = head.metrics
            table.add_row(
                str(row["layer"]),
                str(row["q_head"]),
                _number(row["ap_overall"]),
                _number(row["ap_drop"]),
                _number(row["q_R2_total"]),
            )
        console.print(table)


def _print_not_captured(plan: Plan, console: Console) -> None:
    if plan.not_captured:
        count = len(plan.not_captured)
        console.print(
            f"{count} query heads are not in the dump and were left out: "
            f"{format_heads(plan.not_captured)}"
        )


def _print_failures(failures: Sequence[Failure], total: int, console: Console) -> None:
    console.print()
    console.print(Text(f"{len(failures)} of {total} heads failed", "bold red"))
    for failure in failures:
        name = f"layer {failure.layer:>2} head {failure.q_head:>2}"
        console.print(Text.assemble((f"  {name}  ", "bold"), failure.reason))
