"""From the segments of a capture to the files of the dump.

Chunks follow each other in the order of their texts, so the file of a head has its rows of all
segments one after the other. A head whose file names this capture is finished: its file appears in
one step. When all heads of a table are finished, the table is removed from the segments, so that
the disk never holds both. `dump.json` is written last. The files do not depend on interruptions, on
the number of processes or on the size of chunks.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from qk_dump.columns import ARGMAX_TOKEN, TOKEN_ID
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest
from qk_dump.parquet import opened_parquet
from qk_dump.record import capture_id
from qk_dump.side_files import write_side_files
from qk_dump.writer import DATA_FILE, HeadWriter
from qk_sniffer.capture.folder import CaptureFolder
from qk_sniffer.capture.refusals import REMEDY
from qk_sniffer.capture.segments import Segment, head_groups, read_segments
from qk_sniffer.rows.layer_tables import LayerTable, Part
from qk_toolkit.errors import ConfigError, DumpError, OutputError
from qk_toolkit.files import cannot_write, remove_drafts, sync_folder

TokenTexts = Callable[[Sequence[int]], Mapping[int, str]]
"""Gives the text of every token id."""

_THREADS = 8
_ROWS_AT_A_TIME = 65_536


def finish(
    capture: CaptureFolder,
    num_chunks: int,
    tables: Sequence[LayerTable],
    manifest: DumpManifest,
    *,
    on_head: Callable[[int, int], None] = lambda done, total: None,
    token_texts: TokenTexts | None = None,
) -> None:
    """Write the dump; the caller has the lock of `capture.lock_to_finish`.

    Raises a `DumpError` if rows on disk are damaged. The plan and the number of examples are added
    to `manifest`. `on_head` is called with the number of written heads and of all heads. With
    `token_texts`, the texts of the tokens are written, too.
    """
    try:
        if capture.is_open:
            segments = read_segments(capture.folder)
            _require_chunks(capture.folder, segments, num_chunks)
            examples = [example for segment in segments for example in segment.examples]
            identity = capture_id(capture.plan, (example.as_record() for example in examples))
            heads = [head for table in tables for head in table.head_ids]
            written = _Heads(capture.folder, identity, segments, on_head, len(heads))
            written.write(tables)
            if not any(rows for head, rows in written.rows.items() if not head.attended):
                raise _no_rows(manifest)
            texts = None if token_texts is None else token_texts(sorted(written.tokens))
            facts = {"capture": capture.plan, "num_examples": len(examples)}
            rows = {head.folder: written.rows[head] for head in heads}
            facts |= {"capture_id": identity, "rows": rows}
            manifest = manifest.model_copy(update=facts)
            write_side_files(capture.folder, manifest, heads, examples, texts)
        capture.end()
    except OSError as error:
        raise cannot_write(capture.folder, error) from error


def _require_chunks(folder: Path, segments: Sequence[Segment], num_chunks: int) -> None:
    found, wanted = {segment.number for segment in segments}, {*range(num_chunks)}
    if wanted - found:
        raise OutputError(
            f"{folder}: {len(wanted - found)} of {num_chunks} chunks of texts are not on disk "
            f"(the first: {min(wanted - found)}). Run the same command again."
        )
    if found - wanted:
        raise ConfigError(
            f"{folder}: holds more texts than the dataset now has; {REMEDY.format('start again')}"
        )


def _no_rows(manifest: DumpManifest) -> ConfigError:
    """A dump without a single row is refused."""
    sampler = manifest.sampler or {}
    return ConfigError(
        f"capture.sampler: no position of any text was kept (type {sampler.get('type')}, "
        f"base_rate {sampler.get('base_rate')}, min_bucket_size {manifest.min_bucket_size}). Raise "
        "capture.sampler.base_rate, or give longer texts, and add --overwrite."
    )


@dataclass
class _Heads:
    """The files of all heads."""

    folder: Path
    identity: str  # of the capture
    segments: Sequence[Segment]
    on_head: Callable[[int, int], None]
    total: int
    rows: dict[HeadId, int] = field(default_factory=dict)
    tokens: set[int] = field(default_factory=set)  # of all rows

    def write(self, tables: Sequence[LayerTable]) -> None:
        """Write the files in parallel, table after table."""
        open_groups = Counter[Part]()
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            jobs = {
                pool.submit(self._write_group, table, group): table.part
                for table in tables
                for group in range(len(head_groups(table)))
            }
            open_groups.update(jobs.values())
            try:
                for job in as_completed(jobs):
                    rows, tokens = job.result()
                    self.rows |= rows
                    self.tokens |= tokens
                    self.on_head(len(self.rows), self.total)
                    part = jobs[job]
                    open_groups[part] -= 1
                    if not open_groups[part]:
                        self._remove(part)
            except BaseException:  # raised again
                pool.shutdown(cancel_futures=True)
                raise

    def _remove(self, part: Part) -> None:
        """Remove the rows of a part from the segments: they are in the files of its heads."""
        head = self.folder / part.head(0).folder
        for place in {head.parent, self.folder}:
            sync_folder(place)
        for segment in self.segments:
            segment.file(part).unlink(missing_ok=True)

    def _write_group(self, table: LayerTable, group: int) -> tuple[dict[HeadId, int], set[int]]:
        """Write the files of some heads, unless they are there. Their rows and tokens."""
        heads = [table.part.head(number) for number in head_groups(table)[group]]
        for head in heads:
            remove_drafts(self.folder / head.folder / DATA_FILE)
        found = [self._finished(table, head) for head in heads]
        if all(one is not None for one in found):
            rows = {head: one[0] for head, one in zip(heads, found, strict=True) if one}
            return rows, set[int]().union(*(one[1] for one in found if one))
        self._require_rows(table.part)
        tokens, names = set[int](), _token_columns(table)
        with ExitStack() as stack:
            writers = {}
            for head in heads:
                writer = HeadWriter(self.folder, head, table.schema, self.identity)
                writers[head.head] = stack.enter_context(writer)
            for segment in self.segments:
                for number, part in segment.rows(table, group):
                    for name in names:
                        tokens.update(part[name].unique().drop_null().to_pylist())
                    writers[number].write(part)
        for head in heads:
            sync_folder(self.folder / head.folder)
        return {table.part.head(number): one.rows for number, one in writers.items()}, tokens

    def _require_rows(self, part: Part) -> None:
        """Refuse segments without the rows of a part that is not finished."""
        if any(not segment.file(part).exists() for segment in self.segments):
            raise ConfigError(
                f"{self.folder}: the files of layer {part.layer} were written with other texts, or "
                "have changed, and its captured rows are removed. Give the texts of then, or "
                f"{REMEDY.format('start again')}"
            )

    def _finished(self, table: LayerTable, head: HeadId) -> tuple[int, set[int]] | None:
        """Rows and tokens of a head that an earlier process has finished; else None."""
        path = self.folder / head.folder / DATA_FILE
        if not path.exists():
            return None
        try:
            with opened_parquet(path) as parquet:
                if parquet.record is None or parquet.record.capture != self.identity:
                    return None
                tokens, names = set[int](), _token_columns(table)
                for batch in parquet.batches(_ROWS_AT_A_TIME, names) if names else ():
                    for column in batch.columns:
                        tokens.update(column.unique().drop_null().to_pylist())
                return parquet.metadata.num_rows, tokens
        except DumpError:
            return None


def _token_columns(table: LayerTable) -> list[str]:
    return [name for name in (TOKEN_ID, ARGMAX_TOKEN) if name in table.schema.names]
