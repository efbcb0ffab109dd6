"""From the segments of a capture to the files of the dump.

Chunks follow each other in the order of their texts, so the file of a head has its rows of all
segments one after the other. `dump.json` is written last. The files do not depend on interruptions,
on the number of processes or on the size of chunks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from qk_dump.columns import ARGMAX_TOKEN, TOKEN_ID
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest
from qk_dump.record import capture_id
from qk_dump.side_files import write_side_files
from qk_dump.writer import HeadWriter
from qk_sniffer.capture.folder import CaptureFolder
from qk_sniffer.capture.refusals import REMEDY
from qk_sniffer.capture.segments import Segment, head_groups, read_segments
from qk_toolkit.errors import ConfigError, OutputError
from qk_toolkit.files import cannot_write, remove_drafts, sync_folder

TokenTexts = Callable[[Sequence[int]], Mapping[int, str]]
"""Gives the text of every token id."""

_THREADS = 8


def finish(
    capture: CaptureFolder,
    num_chunks: int,
    schemas: Mapping[HeadId, pa.Schema],
    manifest: DumpManifest,
    *,
    on_head: Callable[[int, int], None] = lambda done, total: None,
    token_texts: TokenTexts | None = None,
) -> None:
    """Write the dump; the caller has the lock of `capture.lock_to_finish`.

    Raises a `DamagedSegmentError` if rows on disk are damaged. The plan and the number of
    examples are added to `manifest`. `on_head` is called with the number of
    written heads and of all heads. With `token_texts`, the texts of the tokens are written, too.
    """
    try:
        if not capture.has_dump():
            segments = read_segments(capture.folder)
            _require_chunks(capture.folder, segments, num_chunks)
            examples = [example for segment in segments for example in segment.examples]
            identity = capture_id(capture.plan, (example.as_record() for example in examples))
            rows, tokens = _write_heads(capture.folder, identity, segments, schemas, on_head)
            texts = None if token_texts is None else token_texts(sorted(tokens))
            facts = {"capture": capture.plan, "num_examples": len(examples)}
            facts |= {"capture_id": identity, "rows": {head.folder: rows[head] for head in schemas}}
            manifest = manifest.model_copy(update=facts)
            write_side_files(capture.folder, manifest, list(schemas), examples, texts)
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


def _write_heads(
    folder: Path,
    identity: str,
    segments: Sequence[Segment],
    schemas: Mapping[HeadId, pa.Schema],
    on_head: Callable[[int, int], None],
) -> tuple[dict[HeadId, int], set[int]]:
    """Write the files of all heads in parallel. Returns their rows, and the ids of all tokens."""
    rows: dict[HeadId, int] = {}
    tokens = set[int]()
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        jobs = [
            pool.submit(_write_group, folder, identity, segments, heads, schemas[heads[0]])
            for heads in head_groups(schemas)
        ]
        try:
            for job in as_completed(jobs):
                found, ids = job.result()
                rows |= found
                tokens |= ids
                on_head(len(rows), len(schemas))
        except BaseException:  # raised again
            pool.shutdown(cancel_futures=True)
            raise
    return rows, tokens


def _write_group(
    folder: Path,
    identity: str,
    segments: Sequence[Segment],
    heads: Sequence[HeadId],
    schema: pa.Schema,
) -> tuple[dict[HeadId, int], set[int]]:
    """Write the files of some heads of one layer and kind. Returns their rows and tokens."""
    tokens = set[int]()
    names = {TOKEN_ID, ARGMAX_TOKEN}.intersection(schema.names)
    with ExitStack() as stack:
        writers = {}
        for head in heads:
            writer = HeadWriter(folder, head, schema, identity)
            remove_drafts(writer.path)
            writers[head] = stack.enter_context(writer)
        for segment in segments:
            for head, table in segment.tables(heads, schema):
                for name in names:
                    tokens.update(table[name].unique().drop_null().to_pylist())
                writers[head].write(table)
    for head in heads:
        sync_folder(folder / head.folder)
    return {head: writer.rows for head, writer in writers.items()}, tokens
