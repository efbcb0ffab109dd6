"""The columns `received` and `inclusion` of key files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dumps import add_attended, head_rows, make_dump
from head_files import lists, read, refusal, save
from qk_dump.attended_keys import read_attended
from qk_dump.layout import HeadId
from qk_dump.received_columns import ReceivedRows, joint_inclusion, thinned_inclusion
from qk_dump.source import open_dump
from qk_dump.writer import write_head

N = 30
HEAD = HeadId(0, 0, "k")


def some_rows(n: int = N, group: int = 3) -> ReceivedRows:
    rng = np.random.default_rng(0)
    received = rng.random((n, group), np.float32)
    received[5] = np.nan
    return ReceivedRows(received, rng.uniform(1e-6, 1, n))


def test_columns_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = some_rows()
    content = head_rows(N)
    path = write_head(tmp_path, HEAD, received=rows, **content)
    table = pq.read_table(path)
    assert table.schema.field("received").type == pa.list_(pa.float32(), 3)
    assert table.schema.field("inclusion").type == pa.float64()
    assert table["received"].null_count == 1
    found = read(path, with_received=True)
    assert found.received is not None
    np.testing.assert_array_equal(found.received.received, rows.received)
    np.testing.assert_array_equal(found.received.inclusion, rows.inclusion)
    assert read(path).received is None
    np.testing.assert_array_equal(read(path).vectors, content["vectors"])
    some = read(path, with_received=True, max_rows=7, seed=3)
    chosen = np.sort(np.random.default_rng(3).choice(N, 7, replace=False))
    assert some.received is not None
    np.testing.assert_array_equal(some.received.inclusion, rows.inclusion[chosen])
    text = found.of_texts(np.array([1]))
    assert text.received is not None
    assert len(text.received.inclusion) == len(text) == (content["example_id"] == 1).sum()


def test_dumps_without_the_columns_are_read(tmp_path: Path) -> None:
    old = write_head(tmp_path / "old", HEAD, **head_rows(N))
    new = write_head(tmp_path / "new", HEAD, received=some_rows(), **head_rows(N))
    assert read(old, with_received=True).received is None
    assert read(new, old, with_received=True).received is None  # one shard lacks them


VALUES = np.full((6, 3), 0.25)
GOOD: dict[str, Any] = {"received": lists(VALUES), "inclusion": pa.array([0.5] * 6)}


def changed(row: int, value: float) -> np.ndarray[Any, Any]:
    values = VALUES.copy()
    values[row, 1] = value
    return values


def test_lists_of_any_length_are_read(tmp_path: Path) -> None:
    found = read(save(tmp_path / "a.parquet", **GOOD), with_received=True)
    assert found.received is not None
    np.testing.assert_array_equal(found.received.received, VALUES)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"received": None}, "has the column 'inclusion' and lacks 'received'"),
        ({"inclusion": None}, "has the column 'received' and lacks 'inclusion'"),
        ({"received": pa.array([1.0] * 6)}, "column 'received' is double, expected a list"),
        ({"inclusion": pa.array(["a"] * 6)}, "column 'inclusion' is string, expected a float"),
        ({"received": lists(changed(2, 1.5))}, "row 2: impossible value in received"),
        ({"received": lists(changed(3, -0.1))}, "row 3: impossible value in received"),
        ({"received": lists(changed(4, np.nan))}, "row 4: impossible value in received"),
        ({"received": lists(changed(5, np.inf))}, "row 5: impossible value in received"),
        ({"inclusion": pa.array([0.5] * 5 + [0.0])}, "row 5: impossible value in inclusion"),
        ({"inclusion": pa.array([1.5] + [0.5] * 5)}, "row 0: impossible value in inclusion"),
        ({"inclusion": pa.array([0.5, None] * 3)}, "row 1: impossible value in inclusion"),
        ({"inclusion": pa.array([0.5, np.inf] * 3)}, "row 1: impossible value in inclusion"),
        ({"inclusion": pa.array([0.5, np.nan] * 3)}, "row 1: impossible value in inclusion"),
        ({"inclusion": pa.array([-0.5, 0.5] * 3)}, "row 0: impossible value in inclusion"),
        (
            {"received": pa.array([[0.1], [0.1, 0.2]] * 3, pa.list_(pa.float32()))},
            "row 1: received has another number of values",
        ),
        (
            {"received": pa.array([[0.1] * 5000] * 6, pa.list_(pa.float32(), 5000))},
            "received has 5000 values, expected 1 to 4096",
        ),
    ],
)
def test_impossible_columns_are_refused_and_ignored_where_they_are_not_read(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    content = {name: value for name, value in (GOOD | columns).items() if value is not None}
    path = save(tmp_path / "a.parquet", **content)
    assert message in refusal(path, with_received=True)
    assert read(path).received is None


def test_attended_keys_of_a_head(tmp_path: Path) -> None:
    make_dump(tmp_path, layers=1, n=40)
    path = add_attended(tmp_path, head=1, n=9)
    write_head(
        tmp_path,
        HeadId(0, 0, "k", attended=True),
        received=ReceivedRows(np.empty((0, 2), np.float32), np.empty(0)),
        **head_rows(0),
    )
    dump = open_dump(tmp_path)
    assert read_attended(dump, 0, 0, max_rows=100, seed=0) is None  # an empty file is valid
    assert read_attended(dump, 7, 0, max_rows=100, seed=0) is None
    found = read_attended(dump, 0, 1, max_rows=100, seed=0)
    assert found is not None
    assert found.received is not None
    assert len(found) == 9
    assert found.received.inclusion.tolist() == pq.read_table(path)["inclusion"].to_pylist()
    some = read_attended(dump, 0, 1, max_rows=4, seed=0)
    assert some is not None
    assert len(some) == 4


def test_inclusion_of_thinned_samples() -> None:
    """Counted in a simulation in which keys drawn in both ways are in the base file only."""
    rng = np.random.default_rng(1)
    base, attended = np.array([0.9, 0.5, 0.1, 1.0]), np.array([0.2, 1.0, 0.3, 0.0])
    inclusion = joint_inclusion(base, attended)
    np.testing.assert_allclose(inclusion, 1 - (1 - base) * (1 - attended))
    in_base, drawn = (rng.random((200_000, 4)) < chance for chance in (base, attended))
    in_attended = drawn & ~in_base
    np.testing.assert_allclose((in_base | in_attended).mean(axis=0), inclusion, atol=0.005)
    kept_base = in_base & (rng.random(in_base.shape) < 0.3)
    share = (kept_base | in_attended).mean(axis=0)
    np.testing.assert_allclose(share, thinned_inclusion(inclusion, base, 0.3), atol=0.005)
    np.testing.assert_allclose(thinned_inclusion(inclusion, base, 0.3), inclusion - 0.7 * base)
    kept_attended = in_attended & (rng.random(in_base.shape) < 0.6)
    share = (kept_base | kept_attended).mean(axis=0)
    np.testing.assert_allclose(share, thinned_inclusion(inclusion, base, 0.3, 0.6), atol=0.005)
    np.testing.assert_array_equal(thinned_inclusion(inclusion, base, 1.0), inclusion)
