"""Segments: batches on their way to the dump, whatever happens to the process."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captures import (
    HEADS,
    PLAN,
    add,
    blocks_of,
    content,
    examples_of,
    finish,
    make_capture,
    opened,
    segments,
    undisturbed,
)
from qk_dump import writer
from qk_dump.attention_columns import AttentionRows, attention_arrays
from qk_dump.examples import read_examples
from qk_dump.layout import HeadId
from qk_dump.reader import read_head
from qk_dump.received_columns import ReceivedRows, received_arrays
from qk_dump.schema import written_schema
from qk_dump.source import open_dump
from qk_dump.writer import with_head
from qk_sniffer.pipeline import segment_files
from qk_sniffer.pipeline.blocks import Block
from qk_toolkit.errors import ConfigError, DumpError, OutputError

DRAWN = HeadId(0, 1, "k", attended=True)


def rows_of(folder: Path, head: HeadId) -> pa.Table:
    return pq.read_table(folder / head.folder / "data.parquet")


def expected_rows(
    batches: range, layer: int, kind: str, head: int, attended: bool = False, **options: Any
) -> pa.Table:
    blocks = [
        block
        for batch in batches
        for block in blocks_of(batch, **options)
        if (block.layer, block.kind, block.attended) == (layer, kind, attended)
        and head in block.heads
    ]
    place = 0 if attended else head  # each has a block of its own
    vectors = np.concatenate([block.vectors[:, place] for block in blocks])
    tokens = [text for block in blocks for text in block.token_str or ()]
    columns = {
        name: np.concatenate([getattr(block, name) for block in blocks]).tolist()
        for name in ("bucket", "example_id", "position")
    }
    columns |= {
        "vector": list(vectors),
        "sliding_window": [blocks[0].sliding_window] * len(vectors),
    }
    if tokens:
        columns["token_str"] = tokens
    attention = [block.attention[:, place] for block in blocks if block.attention is not None]
    if attention:
        columns |= attention_arrays(AttentionRows.joined(attention))
    for name in ("token_id", "value_norm"):
        parts = [getattr(block, name) for block in blocks if getattr(block, name) is not None]
        if parts:
            values = np.concatenate([part if part.ndim == 1 else part[:, place] for part in parts])
            known = values >= 0
            columns[name] = [
                v if ok else None for v, ok in zip(values.tolist(), known, strict=True)
            ]
    received = [block.received[:, place] for block in blocks if block.received is not None]
    if received:
        columns |= received_arrays(ReceivedRows.joined(received))
    schema = written_schema(vectors.shape[1], pa.from_numpy_dtype(vectors.dtype), columns, group=2)
    return with_head(pa.table(columns, schema=schema), HeadId(layer, head, kind, attended))  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_dump_holds_every_row_in_order(tmp_path: Path, dtype: Any, tokens: bool) -> None:
    make_capture(tmp_path, 7, dtype=dtype, tokens=tokens)
    for head in (*(HeadId(layer, 3, "q") for layer in (0, 1)), HeadId(0, 1, "k"), DRAWN):
        found = rows_of(tmp_path, head)
        assert found.num_rows > 0
        layer, number, kind, attended = head
        expected = expected_rows(
            range(7), layer, kind, number, attended, dtype=dtype, tokens=tokens
        )
        assert found.equals(expected)


def test_the_reader_takes_the_dump(tmp_path: Path) -> None:
    dump = open_dump(make_capture(tmp_path))
    assert sorted(dump.all_folders) == sorted(expected.head for expected in HEADS)
    head = HeadId(1, 2, "q")
    read = read_head(dump.require_files(head), max_rows=10**6, seed=0, with_examples=True)
    expected = expected_rows(range(7), 1, "q", 2)
    np.testing.assert_array_equal(read.example_id, expected["example_id"].to_numpy())
    assert read.sliding_window == 16
    assert dump.manifest is not None
    assert dump.manifest.capture == PLAN
    assert dump.manifest.num_examples == 21


def test_a_head_without_rows_has_an_empty_file_of_the_same_columns(tmp_path: Path) -> None:
    make_capture(tmp_path, dtype=np.float16, tokens=True)
    found = rows_of(tmp_path, HeadId(2, 1, "k"))
    assert found.num_rows == 0
    assert found.schema.equals(written_schema(4, pa.float16(), ["token_str", "layer", "head"]))
    with pytest.raises(DumpError, match="holds no rows"):
        read_head([tmp_path / "l02h01k" / "data.parquet"], max_rows=9, seed=0, with_examples=False)


def test_a_capture_without_any_row_or_batch_is_a_dump_of_empty_heads(tmp_path: Path) -> None:
    for folder, batches in ((tmp_path / "rows", [3]), (tmp_path / "batches", [])):
        capture = opened(folder)
        for number, batch in enumerate(batches):
            capture.add(number, blocks_of(batch), examples_of(batch))
        finish(capture, len(batches))
        assert rows_of(folder, HeadId(0, 0, "q")).num_rows == 0
        examples = read_examples(folder)
        assert examples is not None
        assert examples.num_rows == 3 * len(batches)


def test_nothing_but_the_dump_is_left(tmp_path: Path) -> None:
    make_capture(tmp_path)
    heads = {f"{expected.head.folder}/data.parquet" for expected in HEADS}
    assert set(content(tmp_path)) == heads | {
        "dump.json",
        "examples.parquet",
        "tokens.parquet",
        "README.md",
    }


def test_examples_and_digests_are_kept(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    add(capture, range(3))
    capture.flush()
    capture.close()

    again = opened(tmp_path)
    assert again.finished == {0, 1, 2}
    assert again.digests == {i: f"digest {i}" for i in range(9)}
    assert again.missing(5) == [3, 4]
    add(again, [3, 4])
    finish(again, 5)

    examples = read_examples(tmp_path)
    assert examples is not None
    assert examples["original_id"].to_pylist() == [f"text {i}" for i in range(15)]


def test_rows_are_counted_over_all_heads(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    add(capture, range(7))
    base = sum(
        expected_rows(range(7), layer, kind, 0).num_rows * count
        for layer in (0, 1)
        for kind, count in (("q", 4), ("k", 2))
    )
    drawn = sum(expected_rows(range(7), 0, "k", head, attended=True).num_rows for head in range(2))
    assert capture.rows == base + drawn
    capture.flush()
    assert capture.total_rows == base  # a dump without these is refused
    finish(capture, 7)
    assert sum(rows_of(tmp_path, head.head).num_rows for head in HEADS) == base + drawn


def test_progress_counts_to_the_number_of_heads(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    capture = opened(tmp_path)
    add(capture, range(2))
    finish(capture, 2, on_head=lambda done, total: heard.append((done, total)))
    assert heard == [(done, len(HEADS)) for done in range(1, len(HEADS) + 1)]


def test_a_full_buffer_is_written(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    capture.flush_bytes = sum(block.nbytes for batch in (0, 1) for block in blocks_of(batch))
    add(capture, [0])
    assert segments(tmp_path) == []
    add(capture, [1, 2])
    assert [path.name[:8] for path in segments(tmp_path)] == ["00000000"]
    assert opened(tmp_path, rank=1).finished == {0, 1}


def test_an_old_buffer_is_written(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    capture.flush_seconds = 0
    add(capture, [0, 1])
    assert len(segments(tmp_path)) == 2


def test_an_empty_buffer_writes_no_segment(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    capture.flush()
    assert segments(tmp_path) == []


def test_a_segment_says_what_it_holds(tmp_path: Path) -> None:
    capture = opened(tmp_path, rank=3)
    add(capture, [5, 6])
    capture.flush()
    [segment] = segments(tmp_path)
    assert segment.name.startswith("00000005-r3-")
    told = json.loads((segment / "segment.json").read_text())["content"]
    assert set(told["batches"]) == {"5", "6"}
    expected = {f"rows-{kind}.arrow" for kind in ("4q", "4k-2", "6q", "6k")}
    assert set(told["files"]) == expected
    file = told["files"]["rows-6q.arrow"]
    content = (segment / "rows-6q.arrow").read_bytes()
    assert file["starts"][-1] == file["bytes"] == len(content)
    for start, end in pairwise(file["starts"]):
        rows = pa.ipc.read_record_batch(content[start:end], written_schema(6, pa.float32()))
        assert rows.num_rows > 0
    assert len(file["heads"]) == len(file["digests"]) == len(file["starts"]) - 1


@pytest.fixture(scope="module", autouse=True)
def _small_row_groups() -> Iterator[None]:
    with mock.patch.object(writer, "ROWS_PER_GROUP", 7):
        yield


@settings(deadline=None, max_examples=15)
@given(data=st.data(), num_batches=st.integers(1, 9), ranks=st.integers(1, 3))
def test_ranks_segments_and_restarts_do_not_show_in_the_files(
    data: st.DataObject, num_batches: int, ranks: int
) -> None:
    with tempfile.TemporaryDirectory() as place, mock.patch("os.fsync"):
        folder = Path(place)
        captures = [opened(folder, rank=rank) for rank in range(ranks)]
        while missing := captures[0].missing(num_batches):
            order = data.draw(st.permutations(missing))
            for batch in order:
                rank = data.draw(st.integers(0, ranks - 1))
                add(captures[rank], [batch])
                event = data.draw(st.sampled_from(["go on", "flush", "die"]))
                if event == "flush":
                    captures[rank].flush()
                if event == "die":
                    captures[rank].close()
                    captures[rank] = opened(folder, rank=rank)
            for rank in range(ranks):
                captures[rank].flush()
        finish(captures[-1], num_batches)
        for capture in captures:
            capture.close()
        assert content(folder) == undisturbed(num_batches)


def test_a_batch_that_two_ranks_captured_counts_once(tmp_path: Path) -> None:
    for rank, batches in enumerate([(0, 2, 4), (1, 2, 3), (4,), (2, 3, 5, 6)]):
        capture = opened(tmp_path, rank=rank)
        add(capture, batches)
        capture.flush()
        capture.close()
    finish(opened(tmp_path), 7)
    assert content(tmp_path) == undisturbed(7)


def test_a_batch_given_twice_at_once_is_refused(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    with pytest.raises(ValueError, match="batch 1: was already added"):
        add(capture, [1, 1])


def test_a_dump_is_not_made_before_all_batches_are_there(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    add(capture, [0, 1, 3])
    with pytest.raises(OutputError, match=r"2 of 5 batches .* first: 2"):
        finish(capture, 5)
    assert not (tmp_path / "dump.json").exists()
    add(capture, [2, 4])
    finish(capture, 5)
    assert content(tmp_path) == undisturbed(5)


def test_batches_of_texts_the_dataset_lost_are_not_made_a_dump(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    add(capture, range(5))
    with pytest.raises(ConfigError, match=r"holds 5 batches .* now has only 3; .*overwrite"):
        finish(capture, 3)
    assert not (tmp_path / "dump.json").exists()


def test_a_complete_dump_takes_no_more_batches(tmp_path: Path) -> None:
    make_capture(tmp_path)
    with pytest.raises(ValueError, match="batch 0"):
        add(opened(tmp_path), [0])


def test_a_folder_whose_name_is_no_text_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    assert content(make_capture(folder)) == undisturbed(7)


def test_vectors_of_double_precision_are_stored_as_single(tmp_path: Path) -> None:
    make_capture(tmp_path, 3, dtype=np.float64)
    expected = expected_rows(range(3), 0, "q", 0)["vector"].to_pylist()
    assert rows_of(tmp_path, HeadId(0, 0, "q"))["vector"].to_pylist() == expected


def test_rows_of_a_foreign_example_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch 1"):
        opened(tmp_path).add(1, blocks_of(0), examples_of(1))


def test_rows_of_a_head_nobody_announced_are_refused(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    add(capture, [0])
    with pytest.raises(ValueError, match="l00h03q"):
        finish(capture, 1, heads=[head for head in HEADS if head.head.head != 3])
    assert not (tmp_path / "dump.json").exists()


def test_another_window_than_announced_is_refused(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    add(capture, range(3))
    with pytest.raises(ValueError, match="sliding window"):
        finish(capture, 3, heads=[head._replace(window=99) for head in HEADS])


@pytest.mark.parametrize(
    "change",
    [
        {"bucket": np.arange(2)},
        {"position": np.arange(4)},
        {"vectors": np.zeros((3, 1, 4), np.float32)},
        {"vectors": np.zeros((3, 4), np.float32)},
        {"token_str": ["a"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_block_whose_parts_do_not_fit_is_refused(change: dict[str, Any]) -> None:
    parts: dict[str, Any] = {
        "layer": 0,
        "kind": "q",
        "heads": (0, 1),
        "bucket": np.arange(3),
        "example_id": np.arange(3),
        "position": np.arange(3),
        "vectors": np.zeros((3, 2, 4), np.float32),
        "sliding_window": None,
    }
    Block(**parts)
    with pytest.raises(ValueError, match="layer 0 q"):
        Block(**{**parts, **change})


def test_segments_of_another_version_are_captured_anew(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    add(capture, [0])
    capture.flush()
    capture.close()
    file = segments(tmp_path)[0] / "segment.json"
    with mock.patch.object(segment_files, "_SEGMENT_VERSION", 99):
        assert opened(tmp_path).missing(1) == [0]
    assert file.exists()


def test_blocks_may_come_in_parts(tmp_path: Path) -> None:
    """A layer too large to move at once comes as several blocks."""
    capture = opened(tmp_path)
    for batch in range(7):
        parts = []
        for block in blocks_of(batch):
            columns = ("bucket", "example_id", "position", "vectors")
            columns += ("attention", "token_id", "value_norm", "received")
            columns = [name for name in columns if getattr(block, name) is not None]
            for cut in (slice(0, 2), slice(2, None)):
                part = {name: getattr(block, name)[cut] for name in columns}
                shared = (block.layer, block.kind, block.heads)
                same = {"sliding_window": block.sliding_window, "attended": block.attended}
                parts.append(Block(*shared, **part, **same))
        capture.add(batch, parts, examples_of(batch))
    finish(capture, 7)
    assert content(tmp_path) == undisturbed(7)
