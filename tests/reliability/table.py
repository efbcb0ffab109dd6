"""The table of docs/evidence.md: attacks on files, processes and servers.

`make reliability` runs every case (about half an hour) and writes the table; ARGS="--only Hub" runs
the attacks with this text in their names and writes nothing.
"""

import argparse
import gc
import logging
import platform
import sys
import tempfile
import time
import warnings
from pathlib import Path

from reliability.changed_dumps import changed_dump, unnamed_texts
from reliability.damaged_files import damaged_dump
from reliability.flipped_bits import (
    flipped_footer,
    flipped_head_file,
    flipped_record,
    flipped_segment,
)
from reliability.impossible_attention import impossible_attention
from reliability.killed_processes import (
    interrupted_commands,
    killed_analysis,
    killed_capture,
    killed_on_ray,
)
from reliability.odd_models import architectures
from reliability.outcomes import Attack, Outcome, tally
from reliability.servers import faulty_hub, faulty_store

DOCS = Path(__file__).parents[2] / "docs" / "evidence.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->"

ATTACKS = (
    Attack("a bit of a head's file is flipped", flipped_head_file, 997),
    Attack("a bit of a footer is flipped", flipped_footer, 89),
    Attack("a file of a dump is damaged", damaged_dump, 59),
    Attack("attention columns are impossible", impossible_attention, 37),
    Attack("a dump changes during a run", changed_dump, 17),
    Attack("texts have other ids", unnamed_texts, 13),
    Attack("a bit of a finished head is flipped", flipped_record, 1999),
    Attack("a bit of an unfinished capture is flipped", flipped_segment, 499),
    Attack("an analysis is killed twice", killed_analysis, None),
    Attack("an analysis on Ray is killed twice", killed_on_ray, None),
    Attack("a capture is killed twice", killed_capture, None),
    Attack("Ctrl-C twice", interrupted_commands, 23),
    Attack("an object store fails", faulty_store, 13),
    Attack("the Hub fails", faulty_hub, 11),
    Attack("a model is not as its config says", architectures, 19),
)
_HEADING = ("attack", "cases", "refused", "unharmed", "bad")


def run_all(attacks):
    """Run every case of some attacks."""
    found = []
    for attack in attacks:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            done = tally(attack, Path(folder), 1)
        took = time.monotonic() - began
        print(f"{done.cases:>7,}  {attack.name} ({took:.0f} s)", file=sys.stderr)
        for line in done.bad:
            print(f"         BAD {line}", file=sys.stderr)
        found.append(done)
        gc.collect()
    return found


def table(found):
    """The tallies as Markdown."""
    lines = [f"| {' | '.join(_HEADING)} |", "|---|---:|---:|---:|---:|"]
    for one in found:
        good = [one.counts[outcome] for outcome in (Outcome.REFUSED, Outcome.UNHARMED)]
        counts = " | ".join(f"{count:,}" for count in (one.cases, *good, len(one.bad)))
        lines.append(f"| {one.attack.name} | {counts} |")
    machine = f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}"
    return "\n".join(lines) + f"\n\nMade by `make reliability` with {machine}.\n"


def main():
    """Run the cases; write the table when all were run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="attacks whose name holds this text")
    only = parser.parse_args().only
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)  # clients tell every attempt
    found = run_all([attack for attack in ATTACKS if only in attack.name])
    text = table(found)
    print(text)
    if not only:
        before, rest = DOCS.read_text().split(BEGIN)
        DOCS.write_text(before + BEGIN + text + END + rest.split(END)[1])
    return 1 if any(one.bad for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
