"""From the segments of a capture to the files of the dump.

The rows of each head are sorted by example and written as its Parquet file; `dump.json` is written
last. The files do not depend on interruptions, on the number of processes or on the segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa

from qk_dump.attention_columns import ARGMAX_TOKEN
from qk_dump.card import CARD_FILE, card, is_card
from qk_dump.examples import EXAMPLES_FILE, write_examples
from qk_dump.layout import HeadId
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, write_manifest
from qk_dump.schema import TOKEN_ID, VECTOR, WINDOW, written_schema
from qk_dump.tokens import TOKENS_FILE, write_tokens
from qk_dump.writer import write_heads
from qk_sniffer.pipeline.capture_folder import CaptureFolder
from qk_sniffer.pipeline.expected_heads import ExpectedHead
from qk_sniffer.pipeline.refusals import REMEDY
from qk_sniffer.pipeline.segment_files import Segment, finished_batches, read_segments
from qk_toolkit.errors import ConfigError, OutputError
from qk_toolkit.files import cannot_write, remove_drafts, sync_folder, write_text

TokenTexts = Callable[[Sequence[int]], Mapping[int, str]]
"""Gives the text of every token id."""


def write_dump(
    capture: CaptureFolder,
    num_batches: int,
    manifest: DumpManifest,
    heads: Sequence[ExpectedHead],
    *,
    on_head: Callable[[int, int], None] | None = None,
    token_texts: TokenTexts | None = None,
) -> None:
    """Convert the segments to the dump; the caller has the lock of `capture.lock_to_finish`.

    Raises a `DamagedSegmentError` if rows on disk are damaged. The plan and the number of examples
    are added to `manifest`. `on_head` is called with the number of written heads and of all heads.
    With `token_texts`, the texts of the tokens are written, too.
    """
    try:
        if not capture.has_dump():
            segments = read_segments(capture.folder)
            _require_batches(capture.folder, segments, num_batches)
            _write_files(
                capture.folder, capture.plan, segments, manifest, heads, on_head, token_texts
            )
        capture.end()
    except OSError as error:
        raise cannot_write(capture.folder, error) from error


def _write_files(
    folder: Path,
    plan: dict[str, Any],
    segments: Sequence[Segment],
    manifest: DumpManifest,
    heads: Sequence[ExpectedHead],
    on_head: Callable[[int, int], None] | None,
    token_texts: TokenTexts | None,
) -> None:
    """Write the files of the heads, examples.parquet, tokens.parquet, the card, then dump.json."""
    schemas = _schemas(segments, heads)
    windows = {expected.head: expected.window for expected in heads}
    ids: set[int] = set()
    write_heads(folder, schemas, partial(_pieces, segments, windows, ids), on_head)
    examples = {example.example_id: example for segment in segments for example in segment.examples}
    facts = {"capture": plan, "num_examples": len(examples)}
    manifest = manifest.model_copy(update=facts)
    for name in (EXAMPLES_FILE, TOKENS_FILE, CARD_FILE, MANIFEST_NAME):
        remove_drafts(folder / name)
    write_examples(folder, examples.values())
    if token_texts is not None:
        write_tokens(folder, token_texts(sorted(ids)))
    names = sorted(schemas, key=lambda head: (head.attended, head))
    if is_card(folder / CARD_FILE) or not (folder / CARD_FILE).exists():
        text = card(manifest, names, examples=True, tokens=token_texts is not None)
        write_text(folder / CARD_FILE, text)
    sync_folder(folder)
    write_manifest(folder, manifest)
    sync_folder(folder)


def _require_batches(folder: Path, segments: Sequence[Segment], num_batches: int) -> None:
    found, wanted = finished_batches(segments), {*range(num_batches)}
    if wanted - found:
        raise OutputError(
            f"{folder}: {len(wanted - found)} of {num_batches} batches are not captured yet "
            f"(the first: {min(wanted - found)}). Run the same command again."
        )
    if found - wanted:
        raise ConfigError(
            f"{folder}: holds {len(found)} batches of texts, but the dataset now has only "
            f"{num_batches}; {REMEDY.format('start again')}"
        )


def _schemas(segments: Sequence[Segment], heads: Sequence[ExpectedHead]) -> dict[HeadId, pa.Schema]:
    """The Parquet schema of every head."""
    files = [file for segment in segments for file in segment.files.values()]
    unexpected = {name for file in files for name in file.record_batches} - {
        expected.head.folder for expected in heads
    }
    if unexpected:
        raise ValueError(f"segments hold rows of unexpected heads: {sorted(unexpected)}")
    rows = files[0].schema if files else written_schema(1, pa.float32())
    vector_type = rows.field(VECTOR).type.value_type
    return {
        expected.head: written_schema(
            expected.width, vector_type, expected.optional, expected.group
        )
        for expected in heads
    }


def _pieces(
    segments: Sequence[Segment],
    windows: Mapping[HeadId, int | None],
    token_ids: set[int],
    head: HeadId,
    schema: pa.Schema,
) -> Iterator[tuple[pa.Table, int | None]]:
    """The rows of a head in each segment, with the first example of the next segment.

    The tokens of the rows are added to `token_ids`.
    """
    limits = [segment.first_example for segment in segments[1:]]
    for segment, limit in zip_longest(segments, limits):
        rows = segment.rows(head, schema)
        if rows.num_rows and rows[WINDOW][0].as_py() != windows[head]:
            raise ValueError(f"{head.folder}: rows have an unexpected sliding window")
        for name in {TOKEN_ID, ARGMAX_TOKEN}.intersection(schema.names):
            token_ids.update(rows[name].unique().drop_null().to_pylist())
        yield rows, limit
