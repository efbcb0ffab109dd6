"""Groups of texts: ranks of ids, and the texts of a dump."""

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

from attention_plasticity.read.texts import DumpTexts, TextGroups, texts_of_dump
from dumps import make_dump
from qk_dump.examples import EXAMPLES_FILE
from qk_dump.layout import Dump
from qk_dump.source import open_dump
from qk_toolkit.errors import DumpError


def listed_texts(dump: Dump, *, equal_texts: bool = False) -> dict[str, Any] | None:
    """Number and hash of the texts of a run."""
    return texts_of_dump(dump, [], equal_texts=equal_texts).listed


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    return open_dump(make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=20))


def write_examples(dump: Dump, ids: list[int | None], originals: list[str | None]) -> None:
    table = pa.table({"example_id": pa.array(ids, pa.int64()), "original_id": originals})
    pq.write_table(table, dump.path / EXAMPLES_FILE)


def test_without_a_list_of_texts_the_id_modulo_16_is_the_group() -> None:
    assert TextGroups().of(np.array([0, 15, 16, 37])).tolist() == [0, 15, 0, 5]


def test_the_group_is_the_rank_of_the_id_in_the_dump(dump: Dump) -> None:
    ids = [1000 * number for number in range(20)]
    write_examples(dump, ids[::-1], [f"text {number}" for number in ids])
    groups = texts_of_dump(dump, []).groups
    assert groups.of(np.array(ids)).tolist() == [number % 16 for number in range(20)]


def test_unreadable_lists_are_not_used(dump: Dump) -> None:
    missing = texts_of_dump(dump, [0])
    assert (missing.ids, missing.listed, missing.problem) == (None, None, None)
    (dump.path / EXAMPLES_FILE).write_bytes(b"junk")
    spoilt = texts_of_dump(dump, [0])
    assert spoilt.ids is not None
    assert spoilt.ids.tolist() == [0, 1, 2, 3]
    assert "examples.parquet: is not a readable Parquet file (" in (spoilt.problem or "")
    assert spoilt.listed == {"count": 4, "digest": None}


def test_rows_of_a_text_that_is_not_listed_are_refused() -> None:
    texts, place = DumpTexts(np.arange(6), None, {"count": 6}), Path("l00h01q")
    texts.require(np.array([0, 5]), np.zeros(2), place)
    with pytest.raises(DumpError, match="has rows of text 6, which is not one of the 6 texts in"):
        texts.require(np.array([0, 6]), np.zeros(2), place)


@given(st.lists(st.integers(0, 2**62), unique=True), st.booleans())
def test_texts_come_back_from_their_message(ids: list[int], problem: bool) -> None:
    some = np.array(sorted([*ids, *[i + 1 for i in ids if i + 1 not in ids]]), np.int64)
    texts = DumpTexts(some, some[::2], {"count": len(some)}, "a reason" if problem else None)
    again = DumpTexts.of_message(json.loads(json.dumps(texts.as_message())))
    np.testing.assert_equal(vars(again), vars(texts))


def test_the_hash_is_of_original_ids_and_groups(dump: Dump) -> None:
    write_examples(dump, [0, 1, 2], ["a", "b", "c"])
    first = listed_texts(dump)
    assert first is not None
    assert first["count"] == 3
    write_examples(dump, [8, 4, 12], ["b", "a", "c"])  # other ids, the same ranks
    assert listed_texts(dump) == first
    write_examples(dump, [0, 1, 2], ["b", "a", "c"])
    assert listed_texts(dump) != first
    write_examples(dump, [0, 1, 2], ["a", None, "c"])
    assert listed_texts(dump) == {"count": 3, "digest": None}
