"""docs/reliability.md: what attacks on files, processes, servers and models came to.

PYTHONPATH=tests python -m reliability.table runs every case and writes the table (about half an
hour); with --step N, every N-th case, without writing.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import tempfile
import time
import warnings
from pathlib import Path

from reliability.changed_dumps import changed_dump, shares_of_two_dumps, unnamed_texts
from reliability.damaged_files import damaged_dump
from reliability.flipped_bits import (
    flipped_footer,
    flipped_head_file,
    flipped_query_file,
    flipped_record,
    flipped_segment,
)
from reliability.hostile_values import hostile_settings
from reliability.impossible_attention import impossible_attention
from reliability.killed_processes import (
    interrupted_commands,
    killed_analysis,
    killed_capture,
    killed_on_ray,
)
from reliability.odd_models import architectures
from reliability.outcomes import Attack, Outcome, Tally, tally

DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->"

ATTACKS = (
    Attack("a bit of a head's file is flipped", flipped_head_file, step=997),
    Attack("a bit of a query file with attention columns is flipped", flipped_query_file, step=487),
    Attack("a bit of a query file's footer is flipped (all tables)", flipped_footer, step=89),
    Attack("attention columns are impossible (`analyze`)", impossible_attention, step=37),
    Attack("a file of a dump is damaged or replaced (`analyze`)", damaged_dump, step=59),
    Attack("a dump changes before a run continues", changed_dump, step=17),
    Attack("texts have other ids than in `examples.parquet`", unnamed_texts, step=13),
    Attack("commands fill one folder from two dumps", shares_of_two_dumps, step=29),
    Attack("a bit of a finished head's record is flipped", flipped_record, step=1999),
    Attack("a bit of an unfinished capture's rows is flipped", flipped_segment, step=499),
    Attack("an analysis is killed twice, then continued", killed_analysis, step=None),
    Attack("an analysis on Ray is killed twice, then continued", killed_on_ray, step=None),
    Attack("a capture is killed twice, then continued", killed_capture, step=None),
    Attack("Ctrl-C twice, 0.05 to 1 s after the start", interrupted_commands, step=23),
    Attack("settings are hostile (YAML)", hostile_settings, step=7),
    Attack("a model is not as its config says", architectures, step=19),
)
_COLUMNS = (Outcome.REFUSED, Outcome.UNHARMED, Outcome.TRACEBACK, Outcome.WRONG, Outcome.LOST)


def run_all(step: int | None = None) -> list[Tally]:
    """Run every attack, all its cases or every so many."""
    found = []
    for attack in ATTACKS:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            done = tally(attack, Path(folder), step or 1)
        print(
            f"{done.cases:>7,}  {attack.name} ({time.monotonic() - began:.0f} s)", file=sys.stderr
        )
        for line in done.bad:
            print(f"         BAD {line}", file=sys.stderr)
        found.append(done)
        gc.collect()
    return found


def table(found: list[Tally]) -> str:
    """The tallies as Markdown."""
    lines = [
        "| attack | cases | clean refusals | result unharmed | tracebacks | silent wrong results "
        "| lost data |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in found:
        counts = " | ".join(f"{one.counts[outcome]:,}" for outcome in _COLUMNS)
        lines.append(f"| {one.attack} | {one.cases:,} | {counts} |")
    total = " | ".join(f"{sum(one.counts[outcome] for one in found):,}" for outcome in _COLUMNS)
    lines.append(f"| **all** | {sum(one.cases for one in found):,} | {total} |")
    machine = f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}"
    return "\n".join(lines) + f"\n\nMade by `make reliability` with {machine}.\n"


def main() -> int:
    """Run the cases; write the table when all were run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, help="run every so many cases and write nothing")
    parser.add_argument("--only", help="attacks whose name holds this text; writes nothing")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    if given.only:
        global ATTACKS
        ATTACKS = tuple(attack for attack in ATTACKS if given.only in attack.name)
    found = run_all(given.step)
    text = table(found)
    print(text)
    if given.step is None and not given.only:
        before, rest = DOCS.read_text().split(BEGIN)
        DOCS.write_text(before + BEGIN + text + END + rest.split(END)[1])
    return 1 if any(one.bad for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
