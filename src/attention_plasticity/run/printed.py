"""The text that `analyze --dry_run` prints."""

from __future__ import annotations

from attention_plasticity.run.at_url import fetch_records
from attention_plasticity.run.compute import tasks_of
from attention_plasticity.run.plan import estimate
from attention_plasticity.run.preparation import PlannedRun
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
    left = {(task.group.layer, task.group.k_head) for task in tasks_of(run)}
    finished = sum((layer, k_head) not in left for layer, _, k_head in plan.triples)
    print_line(console, "Finished", f"{count(finished, 'head')}, with these settings and files")
    print_line(console, "Rows", f"{needed.rows:,} in the files, {needed.rows_used:,} used")
    print_line(console, "Output", run.place.place)
    for name, path in run.place.copies.items():
        print_line(console, "", f"{path} ({name})")
    for problem in needed.problems:
        print_line(console, "Will fail", problem)
    console.print("Nothing was computed or written.")
