"""What the command `sniff-qk` prints."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.filesize import decimal
from rich.table import Table

from qk_dump.head_counts import count_rows
from qk_dump.remote import size_of
from qk_dump.source import open_dump
from qk_toolkit.files import lack_of_room, user_path
from qk_toolkit.formatting import index_ranges
from qk_toolkit.terminal import command_console
from qk_toolkit.urls import is_remote
from qk_toolkit.watcher import Watcher

if TYPE_CHECKING:
    from qk_dump.heads import Kind
    from qk_sniffer.capture.estimate import Estimate
    from qk_sniffer.capture.result import CaptureResult
    from qk_sniffer.config import CaptureConfig
    from qk_sniffer.sampling.heads import WantedLayer

_DRAWN = "keys drawn by attention"
_DRAWN_WHY = (
    "Keys drawn by attention are kept beside the evenly drawn rows: keys that receive much "
    "attention are few, and attended plasticity needs them (capture.attended_keys; 0: none)."
)
_SIMILAR = 4.0  # texts whose lengths differ by less can be cut to the shortest one


def print_result(result: CaptureResult, watcher: Watcher) -> None:
    """What a capture has made, and the next command."""
    if result.left_to_others:
        watcher.note("this process is done; another process completes the dump")
        return
    if result.url is not None:
        if result.sent is not None:
            print(f"{result.url}: {result.sent.files:,} files, {decimal(result.sent.size)}")
        print(f"next: attention-plasticity analyze {shlex.quote(result.url)}")
    elif not result.was_complete:
        _print_dump(result.folder)
    if result.published is not None:
        print(result.published.describe())


def _print_dump(folder: Path) -> None:
    dump = open_dump(folder)
    rows = sum(count_rows(dump.files(head)) for head in dump.folders)
    drawn = sum(count_rows(dump.files(head)) for head in dump.attended)
    size = sum(size_of(file) for head in dump.all_folders for file in dump.files(head))
    attended = f"{drawn:,} {_DRAWN}, " if dump.attended else ""
    number = dump.manifest.num_examples if dump.manifest else None
    texts = "" if number is None else f"{number:,} texts, "
    print(
        f"{folder}: {len(dump.query_heads):,} query heads, {len(dump.key_heads):,} key heads, "
        f"{texts}{rows:,} rows, {attended}{decimal(size)}"
    )
    if dump.query_heads and dump.key_heads:
        print(
            f"next: attention-plasticity analyze {shlex.quote(str(folder))} "
            f"{shlex.quote(f'results/{folder.resolve().name}')}"
        )


def print_estimate(config: CaptureConfig, found: Estimate) -> None:
    """The result of `--dry_run`."""
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    wanted, rows, number = found.setup.row_plan.wanted, found.rows_per_text, found.texts
    layers = [layer.facts.layer for layer in wanted]
    windows = {layer.facts.window for layer in wanted} - {None}
    shortest, longest = min(filter(None, found.lengths), default=0), max(found.lengths)
    table.add_row("model", config.model.name)
    table.add_row(
        "heads",
        f"{sum(len(layer.q) for layer in wanted)} query, "
        f"{sum(len(layer.k) for layer in wanted)} key, in layers {index_ranges(layers)}",
    )
    if windows:
        table.add_row("sliding windows", ", ".join(f"{window:,} tokens" for window in windows))
    table.add_row("texts", "unknown (streaming)" if number is None else f"{number:,}")
    table.add_row(
        "tokens per text",
        f"{shortest:,} to {longest:,}, on average {found.tokens_per_text:,.0f}",
    )
    table.add_row("rows per head and text", _per_kind(rows, ",.1f", wanted))
    if found.attended_per_text is not None:
        more = f"{found.attended_per_text:,.1f} more per key head and text"
        table.add_row(_DRAWN, more if found.attended_per_text else "none: every key is kept")
    if number is None:
        table.add_row("size per text", decimal(round(found.bytes_per_text)))
    else:
        per_head = {kind: rows[kind] * number for kind in rows}
        table.add_row("rows per head", _per_kind(per_head, ",.0f", wanted))
        drawn = found.attended_of_all_heads * number
        more = f", {drawn:,.0f} {_DRAWN}" if found.attended_per_text is not None else ""
        table.add_row("rows of all heads", f"{found.rows_of_all_heads * number:,.0f} rows{more}")
        table.add_row(
            "size",
            f"{decimal(round(found.bytes_per_text * number))} at most; while it is made, up to "
            "1.3 times that",
        )
    table.add_row("folder", config.data_root)
    command_console(wrap=False).print(table)
    if found.setup.choice is not None:
        print(found.setup.choice.describe(config.capture.min_bucket_size))
    if found.attended_per_text:
        print(_DRAWN_WHY)
    if found.few_rows is not None:
        print(f"warning: {found.few_rows}")
        if longest / _SIMILAR <= shortest < longest:
            print(f"To cut all texts to the shortest one: --tokenizer.max_length {shortest}")
    for note in found.notes:
        print(note)
    if number is not None and not is_remote(config.data_root):
        needed = found.bytes_per_text * number
        for line in lack_of_room(user_path(config.data_root), needed):
            print(line)
    print(f"Lengths are those of the first {len(found.lengths)} texts. Nothing was written.")


def _per_kind(rows: dict[Kind, float], form: str, wanted: Sequence[WantedLayer]) -> str:
    """The numbers of rows of the kinds that are captured."""
    captured = {"q": any(layer.q for layer in wanted), "k": any(layer.k for layer in wanted)}
    if all(captured.values()) and rows["q"] == rows["k"]:
        return format(rows["q"], form)
    names: dict[Kind, str] = {"q": "queries", "k": "keys"}
    return ", ".join(
        f"{rows[kind]:{form}} of {name}" for kind, name in names.items() if captured[kind]
    )
