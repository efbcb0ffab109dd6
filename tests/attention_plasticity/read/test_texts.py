"""Texts, their groups and the bins of a run; runs with texts that reach the end of the context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attention_plasticity as ap
from attention_plasticity.read.bins import Bins
from attention_plasticity.read.rows import read_keys
from attention_plasticity.read.texts import (
    DumpTexts,
    run_texts,
    texts_of_dump,
)
from dumps import head_rows, make_dump, write_columns
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.heads import EXAMPLES_FILE, HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.side_files import Example, write_examples

LENGTHS = (1024, 300, 900, 1000, 820, 600, 1010, 200)
LONG = (0, 2, 3, 4, 6)  # texts with positions of at least 0.8 × 1,023


def write_dump(root: Path, texts: tuple[int, ...], *, lengths: bool) -> ap.Dump:
    """One query head and its key head, with rows of some of the texts."""
    for kind in ("q", "k"):
        rows: dict[str, Any] = head_rows(900, examples=len(LENGTHS), seed=[3, kind == "q"])
        last = np.array(LENGTHS)[rows["example_id"]] - 1
        last_row = np.diff(rows["example_id"], append=-1) != 0  # every text has its last token
        rows["position"] = np.where(last_row, last, np.minimum(rows["position"], last))
        rows["bucket"] = rows["position"] // 128
        first = np.unique(
            np.stack([rows["example_id"], rows["position"]]), axis=1, return_index=True
        )
        kept = np.isin(rows["example_id"], texts)
        kept &= np.isin(np.arange(900), first[1])  # one row of a token
        rows = {name: values[kept] for name, values in rows.items()}
        write_columns(root, HeadId(0, 0, kind), **rows)  # type: ignore[arg-type]
    if lengths:
        write_examples(root, [Example(i, f"t{i}", LENGTHS[i], "0") for i in texts])
    return ap.open_dump(root)


def listed_texts(dump: ap.Dump) -> dict[str, Any] | None:
    """Number and hash of the texts of a run."""
    return texts_of_dump(dump, []).listed


def test_a_run_records_its_texts(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", tuple(range(8)), lengths=True)
    listed = listed_texts(dump)
    assert listed is not None
    assert listed["count"] == 8
    run = ap.analyze_dump(dump, output_dir=str(tmp_path / "out"), max_workers=1)
    assert run.info["input"]["texts"] == listed
    texts = [Example(i, None, length, "0") for i, length in enumerate(LENGTHS)]
    write_examples(tmp_path / "dump", texts)
    assert listed_texts(dump) == {"count": 8, "digest": None}
    (tmp_path / "dump" / "examples.parquet").unlink()
    assert listed_texts(dump) is None


def test_wrong_heads_are_refused(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", tuple(range(8)), lengths=True)
    with pytest.raises(ap.DumpError, match=r"head 9 of layer 0 is not .* has query heads 0"):
        ap.analyze_head(0, 9, dump=dump)
    with pytest.raises(ap.ConfigError, match="dump: is missing"):
        ap.analyze_head(0, 0)


def test_bins_of_a_run_follow_from_lengths_and_sampler(tmp_path: Path) -> None:
    """Without one of them, the rows of the first query head are used."""
    root = make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=400, context=1000)
    config = ap.make_config()
    last = analyzed_positions(root)
    assert bins_of_run(root, config) == Bins(64, last + 1)
    write_examples(root, [Example(i, f"t{i}", 4096, "0") for i in range(4)])
    assert bins_of_run(root, config) == Bins(512, 4096)  # few queries are found
    sampler = {"type": "uniform", "base_rate": 64.0}
    write_manifest(root, DumpManifest(bucket_type="uniform", min_bucket_size=128, sampler=sampler))
    assert bins_of_run(root, config) == Bins(256, 4096)
    few = ap.make_config(max_tokens_per_head=300)  # 19 in a bin of 256
    assert bins_of_run(root, few) == Bins(512, 4096)
    assert bins_of_run(root, ap.make_config(bin_size=100)) == Bins(100, 4096)


def bins_of_run(root: Path, config: ap.RunnerConfig) -> Bins | None:
    return run_texts(ap.open_dump(root), [0], config).bins


def analyzed_positions(root: Path) -> int:
    return int(ap.analyze_head(0, 0, 0, root).metrics["q_position_max"])


def test_bins_do_not_depend_on_a_head_that_cannot_be_read(tmp_path: Path) -> None:
    root = make_dump(tmp_path, layers=1, q_heads=2, k_heads=1, n=400)
    found = []
    for damaged in (None, "l00h00q", "l00h01q"):
        if damaged is not None:
            (root / damaged / "data.parquet").write_bytes(b"junk")
        found.append(run_texts(ap.open_dump(root), [0], ap.make_config()).bins)
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].size == found[1].size
    assert found[2] is None


def test_rows_of_a_text_that_the_run_does_not_know_are_refused(tmp_path: Path) -> None:
    dump = write_dump(tmp_path, tuple(range(8)), lengths=True)
    config = ap.make_config()
    with pytest.raises(ap.DumpError, match=r"l00h00k: has rows of text 5, .* 5 texts in exam"):
        read_keys(dump, 0, 0, config, DumpTexts(np.arange(5)))
    found = DumpTexts(np.arange(5), problem="a reason")
    with pytest.raises(ap.DumpError, match=r"5 texts found when the run began\. If the head was"):
        read_keys(dump, 0, 0, config, found)


@given(st.lists(st.integers(0, 2**62), unique=True), st.booleans())
def test_texts_come_back_from_their_message(ids: list[int], problem: bool) -> None:
    some = np.array(sorted([*ids, *[i + 1 for i in ids if i + 1 not in ids]]), np.int64)
    reason, lengths = "a reason" if problem else None, some % 99
    texts = DumpTexts(some, {"count": len(some)}, reason, Bins(8, 99), lengths)
    again = DumpTexts.of_message(json.loads(json.dumps(texts.as_message())))
    np.testing.assert_equal(vars(again), vars(texts))


@pytest.fixture
def small(tmp_path: Path) -> ap.Dump:
    return ap.open_dump(make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=20))


def write_table(small: ap.Dump, ids: list[int | None], originals: list[str | None]) -> None:
    table = pa.table({"example_id": pa.array(ids, pa.int64()), "original_id": originals})
    pq.write_table(table, small.path / EXAMPLES_FILE)


def test_the_group_is_the_rank_of_the_id_in_the_dump(small: ap.Dump) -> None:
    ids = [1000 * number for number in range(20)]
    write_table(small, ids[::-1], [f"text {number}" for number in ids])
    texts = texts_of_dump(small, [])
    assert texts.group_of(np.array(ids)).tolist() == [number % 16 for number in range(20)]


def test_unreadable_lists_are_not_used(small: ap.Dump) -> None:
    missing = texts_of_dump(small, [0])
    assert (missing.ids, missing.listed, missing.problem) == (None, None, None)
    (small.path / EXAMPLES_FILE).write_bytes(b"junk")
    spoilt = texts_of_dump(small, [0])
    assert spoilt.ids is not None
    assert spoilt.ids.tolist() == [0, 1, 2, 3]
    assert "examples.parquet: is not a readable Parquet file (" in (spoilt.problem or "")
    assert spoilt.listed == {"count": 4, "digest": None}


def test_the_hash_is_of_original_ids_and_groups(small: ap.Dump) -> None:
    write_table(small, [0, 1, 2], ["a", "b", "c"])
    first = listed_texts(small)
    assert first is not None
    assert first["count"] == 3
    write_table(small, [8, 4, 12], ["b", "a", "c"])  # other ids, the same ranks
    assert listed_texts(small) == first
    write_table(small, [0, 1, 2], ["b", "a", "c"])
    assert listed_texts(small) != first
    write_table(small, [0, 1, 2], ["a", None, "c"])
    assert listed_texts(small) == {"count": 3, "digest": None}
