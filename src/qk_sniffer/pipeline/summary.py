"""What a person reads when a capture is complete."""

from __future__ import annotations

import shlex
from pathlib import Path

from qk_dump.examples import read_examples
from qk_dump.reader import count_rows
from qk_dump.source import open_dump


def print_summary(folder: Path) -> None:
    """Say what lies in the dump, and the command that analyses it."""
    dump = open_dump(folder)
    rows = sum(count_rows(dump.files(head)) for head in dump.folders)
    size = sum(file.stat().st_size for head in dump.folders for file in dump.files(head))
    examples = read_examples(folder)
    texts = f"{examples.num_rows:,} texts, " if examples is not None else ""
    print(
        f"{folder}: {len(dump.query_heads):,} query heads, {len(dump.key_heads):,} key heads, "
        f"{texts}{rows:,} rows, {size / 1e6:,.1f} MB"
    )
    if dump.query_heads and dump.key_heads:
        print(f"next: attention-plasticity analyze --dataset_local_root {shlex.quote(str(folder))}")
