"""The text that `analyze` prints with `--dry_run`, and after the analysis of several dumps."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from attention_plasticity.run.at_url import fetch_records
from attention_plasticity.run.compute import tasks_of
from attention_plasticity.run.plan import estimate, split_groups
from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.runner import Refused
from attention_plasticity.run.write import Outcome
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, OVER_BUCKETS
from attention_plasticity.tables.summary import mean_text
from qk_toolkit.errors import OutputError, StoreError, ToolkitError
from qk_toolkit.formatting import count, format_heads
from qk_toolkit.terminal import command_console, print_line


def print_plan(run: PlannedRun) -> None:
    """Print what a run would do. Nothing is written but the copy of records at a URL."""
    console, plan, config = command_console(), run.plan, run.config
    fetch_records(run.place, run.records)
    needed = estimate(run.dump, plan, config)
    print_line(console, "Dump", str(run.dump.path))
    print_line(console, "Layout", str(plan.layout))
    heads, keys = count(len(plan.heads), "query head"), count(len(plan.groups), "key head")
    print_line(console, "To analyse", f"{heads} of {keys}")
    print_line(console, "Not captured", format_heads(plan.not_captured) or "none")
    tasks = [task for task in tasks_of(run, 1) if not task.fidelity]
    finished = len(plan.heads) - sum(len(task.units) for task in tasks)
    print_line(console, "Finished", f"{count(finished, 'head')}, with these settings and files")
    print_line(console, "Rows", f"{needed.rows:,} in the files, {needed.rows_used:,} used")
    workers = min(config.workers, len(split_groups(list(plan.groups), config.workers)))
    each = needed.worker_memory / 2**20
    print_line(
        console,
        "Memory",
        f"about {each:,.0f} MB per worker, {count(workers, 'worker')}: {workers * each:,.0f} MB",
    )
    print_line(console, "Output", run.place.place)
    for problem in needed.problems:
        print_line(console, "Will fail", problem)
    console.print("Nothing was computed or written.")


def print_several(outcomes: Sequence[Outcome | Refused]) -> int:
    """Print a line per run, and the failures. Returns the exit code."""
    console = command_console()
    console.print()
    table = Table(box=box.SIMPLE)
    table.add_column("run")
    for name in ("heads", "failed", "plasticity", "drop"):
        table.add_column(name, justify="right")
    table.add_column("")
    failed = 0
    for outcome in outcomes:
        if isinstance(outcome, Outcome) and outcome.info["heads"]["analysed"]:
            info = outcome.info
            shown = AT_ONE_POSITION if AT_ONE_POSITION.level in info["means"] else OVER_BUCKETS
            numbers = (f"{info['heads'][name]:,}" for name in ("analysed", "failed"))
            columns = (shown.level, shown.drop)
            values = ("–" if name is None else mean_text(info, name) for name in columns)
            table.add_row(Text(outcome.place.place), *numbers, *values, shown.words)
    console.print(table)
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            failed += 1
            where = outcome.config.dataset_local_root
            print_line(console, _refusal_label(outcome.reason), f"{where}: {outcome.reason}")
        elif outcome.has_failures:
            failed += 1
            print_line(console, "Failures", f"{outcome.place.place}: see run.json")
    return 1 if failed else 0


def _refusal_label(reason: ToolkitError) -> str:
    if isinstance(reason, StoreError):
        return "Not sent"
    return "Not written" if isinstance(reason, OutputError) else "Not analysed"
