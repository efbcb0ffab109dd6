"""Attention that a query can have passes. Impossible values, and files of another head, do not."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumps import head_rows, make_dump, write_columns
from head_files import INTEGERS, LATE, attention_rows, read, refusal, save
from qk_dump.checks import HeadRules, rules_of
from qk_dump.columns import ATTENTION_COLUMNS, COLUMNS, MASS_BINS, first_distances
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_dump.positions import BucketGeometry, first_visible
from qk_dump.rows import Rows
from qk_dump.source import open_dump
from qk_dump.writer import write_head
from qk_toolkit.errors import DumpError

FILE = Path("dump/l00h00q/data.parquet")
HEAD = HeadId(0, 0, "q")

ROUNDINGS = {
    "float32": lambda values: values,
    "float16": lambda values: values.astype(np.float16).astype(np.float32),
    "bfloat16": lambda values: (
        values.astype(np.float32).view(np.uint32) + 0x8000 & 0xFFFF0000
    ).view(np.float32),
}


def attention_of(logits, sink, bins):
    """The attention columns of the queries of one text, from logits (n, n); −inf: not seen."""
    n = len(logits)
    position = np.arange(n)
    largest = logits.max(axis=1)
    lse = np.logaddexp(np.logaddexp.reduce(logits, axis=1), sink)
    weights = np.exp(logits - lse[:, None])
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=1)
    distance = np.maximum(position[:, None] - position, 0)
    number = np.searchsorted(first_distances(bins), distance, side="right") - 1
    masses = np.stack([(weights * (number == b)).sum(axis=1) for b in range(bins)], axis=1)
    seen, same = np.isfinite(logits), position[:, None] % 3 == position % 3
    duplicate = seen & same & (distance > 0)
    induction = seen & np.roll(same, 1, axis=1) & (position > 0)
    values = (
        *(lse, largest, entropy, weights[:, :4].sum(axis=1), masses, weights[:, 0]),
        *(logits.argmax(axis=1), logits.argmax(axis=1) % 3),
        *((weights * duplicate).sum(axis=1), duplicate.sum(axis=1)),
        *((weights * induction).sum(axis=1), induction.sum(axis=1)),
    )
    return dict(zip(ATTENTION_COLUMNS, values, strict=True))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 50),
    spread=st.sampled_from([0.0, 0.3, 3.0, 30.0, 1000.0]),
    shift=st.sampled_from([0.0, -40.0, 300.0]),
    window=st.none() | st.integers(1, 60),
    chunked=st.booleans(),
    sink=st.sampled_from([-np.inf, -30.0, 0.0, 5.0]),
    hidden=st.sampled_from([0.0, 0.6]),
    bins=st.sampled_from([1, 3, MASS_BINS]),
    rounding=st.sampled_from(sorted(ROUNDINGS)),
)
def test_attention_of_random_logits_is_possible(
    seed, n, spread, shift, window, chunked, sink, hidden, bins, rounding
):
    rng = np.random.default_rng(seed)
    position = np.arange(n)
    logits = spread * rng.standard_normal((n, n)) + shift
    first = first_visible(position, window, chunked)
    seen = (position <= position[:, None]) & (position >= first[:, None])
    seen &= (rng.random((n, n)) >= hidden) | np.eye(n, dtype=bool)
    columns = attention_of(np.where(seen, logits, -np.inf), sink, bins)
    for name, values in columns.items():
        if COLUMNS[name].type != pa.int32():
            columns[name] = ROUNDINGS[rounding](values.astype(np.float32))
    columns |= {"position": position.astype(float), "bucket": position}
    columns["sliding_window"] = np.full(n, window or -1)
    HeadRules(chunked=chunked).check(Rows(columns), FILE, 0)


def masses(*values):
    return [*values, *[0.0] * (24 - len(values))]


IMPOSSIBLE = {
    "lse": [-5.0, 50.0],
    "max_logit": [50.0, -50.0],
    "entropy": [-0.1, 9.0],
    "sink_mass": [-0.1, 1.5],
    "mass_by_distance": [masses(0.6, 0.6), masses(1.2, -0.2)],
    "first_mass": [-0.1, 0.9],
    "argmax_position": [6, 99],
    "duplicate_mass": [-0.1, 1.5],
    "duplicate_keys": [6],
    "induction_mass": [-0.1, 1.5],
    "induction_keys": [7],
    "token_id": [-2],
    "sliding_window": [0],
    "position": [-1],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values]
)
def test_an_impossible_value_is_refused_with_its_row(tmp_path, name, value):
    table = pq.read_table(write_head(tmp_path, HEAD, attention_rows(8)))
    values = table[name].to_pylist()
    values[5] = value
    if name == "sliding_window":
        values = [value] * 8
    column = pa.array(values, table.schema.field(name).type)
    path = tmp_path / "l00h00q" / "data.parquet"
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, column), path)
    told = refusal(path, columns=COLUMNS)
    row = 0 if name == "sliding_window" else 5
    other = "lse" if name == "max_logit" else name
    assert f"row {row}: impossible value in {other} (" in told or f"row 5: {name} is neg" in told


def test_rows_with_huge_logits_are_not_checked(tmp_path):
    rows = attention_rows(8)
    huge = rows.with_columns({"lse": rows["lse"] + 1e6, "max_logit": rows["max_logit"] + 1e6})
    huge["mass_by_distance"][3] *= 1.1  # not exact in float32
    assert len(read(write_head(tmp_path, HEAD, huge), columns=COLUMNS)) == 8


def test_keys_that_a_window_hides_are_not_visible(tmp_path):
    rows = attention_rows(40, window=8)
    path = write_head(tmp_path, HEAD, rows)
    assert len(read(path, columns=COLUMNS)) == 40
    moved = rows["argmax_position"].copy()
    moved[30] = 22
    path = write_head(tmp_path, HEAD, rows.with_columns({"argmax_position": moved}))
    assert "(22, expected: a visible key; position 30, 8 visible keys)" in refusal(
        path, columns=COLUMNS
    )
    path = write_head(tmp_path, HEAD, rows)
    assert "visible keys" in refusal(path, columns=COLUMNS, rules=HeadRules(chunked=True))


@pytest.mark.parametrize("name", [*ATTENTION_COLUMNS, "received", "inclusion"])
def test_a_unit_is_whole_or_not_there(tmp_path, name):
    """Also if it is not read: a name may be damaged."""
    rows = attention_rows()
    if name not in rows:
        rows = Rows({name: rows[name] for name in ("bucket", "example_id", "position", "vector")})
        rows = rows.with_columns({"received": np.full((6, 1), 0.5), "inclusion": np.ones(6)})
    rows.columns.pop(name)
    message = refusal(write_head(tmp_path, HEAD, rows))
    assert f"and lacks {name}. Capture or download it again" in message


# dump.json

UNIFORM, LOG = BucketGeometry("uniform", 10), BucketGeometry("log", 8)


@pytest.mark.parametrize("geometry", [UNIFORM, LOG])
def test_buckets_follow_from_positions(file, geometry):
    position, rules = np.arange(LATE + 100) % 120, HeadRules(geometry=geometry)
    bucket = geometry.bucket(position)
    for kind in (*INTEGERS, "float32", "float64"):
        columns = {"bucket": pa.array(bucket), "position": pa.array(position.astype(kind))}
        assert len(read(save(file, len(position), **columns), rules=rules)) == len(position)
    bucket[LATE] += 1
    path = save(file, len(position), bucket=pa.array(bucket), position=pa.array(position))
    told = refusal(path, rules=rules, max_rows=5)  # also rows that are not chosen
    assert f"row {LATE}: bucket is {bucket[LATE]}, but position {position[LATE]} " in told
    assert len(read(path)) == len(position)  # nothing known, nothing checked


def windows(*values):
    return pa.array([*values, *[values[-1]] * (6 - len(values))], pa.int32())


@pytest.mark.parametrize(
    ("window", "column", "told"),
    [
        (64, None, "has no column 'sliding_window', expected 64 (dump.json: layer 0)"),
        (64, windows(32), "row 0: sliding_window is 32, expected 64 (dump.json: layer 0)"),
        (64, windows(64, 64, None), "row 2: sliding_window is null, expected 64"),
        (-1, windows(64), "row 0: sliding_window is 64, expected null (dump.json: layer 0)"),
        (64, windows(64), None),
        (-1, windows(None), None),
        (-1, None, None),
        (None, windows(5), None),
    ],
)
def test_windows_must_be_those_of_dump_json(file, window, column, told):
    changes = {"without": "sliding_window"} if column is None else {"sliding_window": column}
    save(file, **changes)
    rules = HeadRules(HEAD, window=window)
    if told is None:
        assert len(read(file, rules=rules)) == 6
    else:
        assert told in refusal(file, rules=rules)


def dump_of(**fields):
    return Dump(Path("some/dump"), {}, DumpManifest.model_validate(fields))


def test_rules_come_from_dump_json():
    layers = [{"layer": 0, "type": "chunked_attention", "window": 64}, {"layer": 3}]
    dump = dump_of(bucket_type="log", min_bucket_size=8, layers=layers)
    assert rules_of(dump, HEAD) == HeadRules(HEAD, LOG, 64, chunked=True)
    other = HeadId(3, 1, "k")
    assert rules_of(dump, other) == HeadRules(other, LOG, -1)
    absent = HeadId(7, 0, "q")
    assert rules_of(dump, absent) == HeadRules(absent, LOG)
    assert rules_of(Dump(Path("some/dump"), {}), HEAD) == HeadRules(HEAD)


# files of another head


def read_in(root, name):
    dump = open_dump(root)
    head = next(one for one in dump.folders if one.folder == name)
    return len(read(*dump.files(head), rules=rules_of(dump, head)))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("l00h01q", "row 0: head is 1, but the folder is l00h00q; it is the file of another head"),
        ("l01h00q", "row 0: layer is 1, but the folder is l00h00q"),
    ],
)
def test_the_file_of_another_head_is_refused(tmp_path, source, told):
    make_dump(tmp_path, n=20)
    assert read_in(tmp_path, "l00h00q") == 20
    file = shutil.copy(tmp_path / source / "data.parquet", tmp_path / "l00h00q")
    with pytest.raises(DumpError, match=f"is the file of {source}, but the folder is l00h00q"):
        read_in(tmp_path, "l00h00q")
    pq.write_table(pq.read_table(file), file)  # the columns tell it without the metadata
    with pytest.raises(DumpError, match=told):
        read_in(tmp_path, "l00h00q")


def test_keys_in_the_folder_of_queries_are_refused(tmp_path):
    write_columns(tmp_path, HEAD, **head_rows(20), value_norm=np.ones(20))
    with pytest.raises(DumpError, match="'value_norm', which only keys have"):
        read_in(tmp_path, "l00h00q")
