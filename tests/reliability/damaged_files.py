"""Files cut, exchanged and replaced, columns that contradict each other."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from attention_plasticity.metrics import KEY_HEADS
from helpers.attention_dumps import Layer, make_attention_dump
from odd_files import NOT_REGULAR, replace_by
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.side_files import Example, write_examples
from reliability.outcomes import Outcome, command

QUERIES, KEYS = "l00h00q/data.parquet", "l00h00k/data.parquet"
BESIDE = ("dump.json", "examples.parquet", "README.md")

FLAGS = ("--max_workers", 1, "--num_pairs_per_bucket", 16)


def damaged_dump(folder, step):
    """A dump with one file damaged, through the command `analyze`."""
    whole = whole_dump(folder / "whole")
    expected = Expected.of(whole, folder)
    for number, (name, damage) in enumerate(_damages()):
        if number % step == 0:
            yield name, damaged(whole, damage, folder, expected)


Tables = dict[str, str]
"""Name and text of every table of a run."""


class Expected(NamedTuple):
    """Tables of runs over a dump without damage, with its dump.json and without it."""

    with_manifest: Tables
    without_manifest: Tables  # its sampler, bins and rotary records are then not known

    @classmethod
    def of(cls, whole, folder):
        """From the runs of both dumps."""
        alone = Path(shutil.copytree(whole, folder / "alone"))
        (alone / MANIFEST_NAME).unlink()
        return cls(*(_tables_of_run(dump, folder / f"{dump.name} out") for dump in (whole, alone)))


def _tables_of_run(dump, out):
    assert analyze(dump, out).code == 0
    return tables(out)


def analyze(dump, out, *flags):
    """Analyse a dump."""
    return command("analyze", dump, "--output_dir", out, *FLAGS, *flags)


def tables(out):
    """The tables in the folder of a run."""
    return {path.name: path.read_text() for path in out.glob("*.csv")}


def damaged(whole, damage, folder, expected):
    """How a run over a damaged copy of a dump ends."""
    for place in ("dump", "out"):
        shutil.rmtree(folder / place, ignore_errors=True)
    dump = Path(shutil.copytree(whole, folder / "dump"))
    damage(dump)
    before = _regular_files(dump)
    ended = analyze(dump, folder / "out")
    right = expected.with_manifest if (dump / MANIFEST_NAME).exists() else expected.without_manifest
    outcome = judged(ended, tables(folder / "out"), right)
    return Outcome.LOST if _regular_files(dump) != before else outcome


TOLD_WITHOUT_VALUES = (
    "number of texts per query bucket",
    "queries and keys have no text in common",
)
"""Notes of a run about values that are NaN because texts are not known."""


def judged(ended, found, expected):
    """A run may be refused, or leave out heads and say so; no row of another head may differ."""
    if ended.traceback or ended.code not in (0, 1, 2):
        return Outcome.TRACEBACK
    if ended.code == 2:
        return Outcome.REFUSED
    if ended.code == 0:
        same = found == expected
        if any(note in ended.told for note in TOLD_WITHOUT_VALUES):
            same = found.keys() == expected.keys() and all(
                _same_or_nan(found[name], expected[name]) for name in found
            )
        return Outcome.UNHARMED if same else Outcome.WRONG
    return Outcome.REFUSED if _has_no_other_rows(found, expected) else Outcome.WRONG


def _has_no_other_rows(found, expected):
    """Whether all rows are expected ones.

    The row of a key head is left out if it says that it is of fewer query heads than expected.
    """
    known = {name: set(text.splitlines()) for name, text in expected.items()}
    return all(
        set(_rows_of_whole_groups(name, text, expected)) <= known[name]
        for name, text in found.items()
    )


def _rows_of_whole_groups(name, text, expected):
    """The rows of a table, without key heads some of whose query heads were left out."""
    if name != KEY_HEADS.file:
        return text.splitlines()
    names = expected[name].splitlines()[0].split(",")
    head, number = slice(0, 2), names.index("n_q_heads")  # layer and key head come first
    rows = [row.split(",") for row in expected[name].splitlines()]
    sizes = {tuple(row[head]): row[number] for row in rows}
    return [
        line
        for line, row in ((line, line.split(",")) for line in text.splitlines())
        if sizes.get(tuple(row[head])) == row[number]
    ]


_ROW_NAMES = (
    *("layer", "q_head", "k_head", "q_bucket", "k_bucket", "q_bin", "k_bin", "component"),
    *("quantity", "bin", "first_distance", "band"),
)


def _same_or_nan(found, expected):
    """Whether every row is one of the expected ones, with NaN in place of some values."""
    one, other = (
        pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        for text in (found, expected)
    )
    names = [name for name in _ROW_NAMES if name in one]
    rows = {tuple(row[name] for name in names): row for row in other.to_dict("records")}
    return all(
        value in ("nan", rows[tuple(row[name] for name in names)][column])
        for row in one.to_dict("records")
        for column, value in row.items()
        if column not in names
    )


def whole_dump(folder, received=False):
    """Two query heads with attention and one key head, with all that a capture writes beside them.

    The scale is 1/√d, so that results do not depend on dump.json. With `received`, keys have the
    attention that they receive, and further ones are drawn by it.
    """
    layer = Layer(scale=0.5, window=48)
    facts = {
        "model": "tiny",
        "head_dim": 4,
        "num_examples": 4,
        "bucket_type": "uniform",
        "min_bucket_size": 16,
        "layer_types": ["sliding_attention"],
        "layers": [{**layer.entry(0), "rope": True, "learned_sinks": False}],
        "sampler": {"type": "uniform", "base_rate": 8.0, "seed": 0},
        "seed": 0,
    }
    make_attention_dump(
        folder,
        texts=4,
        length=112,
        width=4,
        q_heads=2,
        share=0.5,
        bucket_size=16,
        layer=layer,
        received=received,
        manifest=facts,
    )
    write_examples(folder, [Example(number, number, 112, "") for number in range(4)])
    (folder / "README.md").write_text("# a dump\n")
    return folder


def _regular_files(folder):
    small = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): path.read_bytes() for path in small if path.stat().st_size < 1 << 20}


def _damages():
    for name in (QUERIES, KEYS, *BESIDE):
        for kind, change in _BYTES.items():
            yield f"{name}: {kind}", lambda dump, n=name, c=change: _rewrite(dump / n, c)
        for kind, make in NOT_REGULAR.items():
            yield f"{name}: {kind}", lambda dump, n=name, m=make: replace_by(m, dump / n)
        yield f"{name}: missing", lambda dump, n=name: (dump / n).unlink()
        yield f"{name}: link to nothing", lambda dump, n=name: _link(dump / n, "nothing")
        yield f"{name}: link to itself", lambda dump, n=name: _link(dump / n, (dump / n).name)
    for name in (QUERIES, KEYS):
        for kind, change in _BYTES.items():
            yield (
                f"{name}: {kind}, without dump.json",
                lambda dump, n=name, c=change: _without_manifest(dump, n, c),
            )
        for kind, column in _COLUMNS.items():
            yield f"{name}: {kind}", lambda dump, n=name, c=column: _change(dump / n, c)
        yield f"{name}: huge examples", lambda dump, n=name: _move_texts(dump, n)
    for kept in (False, True):
        yield (
            f"names of the window, metadata {kept}",
            lambda dump, k=kept: _damage_window_names(dump, k),
        )
    for member in _MEMBERS:
        for value in _VALUES:
            yield (
                f"dump.json: {member} = {json.dumps(value)[:30]}",
                lambda dump, m=member, v=value: set_member(dump, m, v),
            )


def _rewrite(path, change):
    path.write_bytes(change(path.read_bytes()))


def _without_manifest(dump, name, change):
    (dump / "dump.json").unlink()
    _rewrite(dump / name, change)


def _damage_window_names(dump, keep_metadata):
    """A wrong bit in the name of the window of all files; nothing else shows the window."""
    (dump / "dump.json").unlink()
    for path in dump.glob("l*/data.parquet"):
        table = pq.read_table(path)
        if not keep_metadata:
            table = table.replace_schema_metadata(None)
        pq.write_table(table.rename_columns({"sliding_window": "slidine_window"}), path)


def _link(path, target):
    path.unlink()
    path.symlink_to(target)


_BYTES = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "a quarter": lambda data: data[: len(data) // 4],
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "without its first byte": lambda data: data[1:],
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: np.random.default_rng(0).bytes(len(data)),
    "text": lambda data: b"not what it should be\n",
    "nested without end": lambda data: b"[" * 100_000,
    "twice": lambda data: data + data,
    "a byte more": lambda data: data + b"\0",
    "noise in the middle": lambda data: (
        data[: len(data) // 2] + b"\xff" * 8 + data[len(data) // 2 + 8 :]
    ),
}


def _change(path, change):
    """A file with other columns. The names in its metadata would show it, so they are left out."""
    pq.write_table(change(pq.read_table(path)).replace_schema_metadata(None), path)


def _move_texts(dump, name):
    """Other ids of texts in one file; no examples.parquet shows which ids there are."""
    (dump / "examples.parquet").unlink()
    ids = _with("example_id", lambda t: pa.array(np.asarray(t["example_id"], np.int64) + 2**62))
    _change(dump / name, ids)


def _with(name, values):
    def change(table):
        column = values(table) if callable(values) else values
        return table.set_column(table.schema.get_field_index(name), name, column)

    return change


def _value(name, row, value):
    """One value of a column exchanged."""

    def changed(table):
        rows = table[name].to_pylist()
        rows[row] = value
        return pa.array(rows)

    return _with(name, changed)


def _shuffled(name):
    order = np.random.default_rng(0).permutation
    return _with(name, lambda table: table[name].take(pa.array(order(table.num_rows))))


_COLUMNS = {
    **{
        f"without {name}": lambda table, name=name: table.drop_columns([name])
        for name in ("bucket", "example_id", "position", "vector", "sliding_window")
    },
    **{
        f"{name} as text": _with(name, lambda table, name=name: pa.array(["x"] * table.num_rows))
        for name in ("bucket", "example_id", "position", "vector", "sliding_window")
    },
    **{f"{name} null": _value(name, 7, None) for name in ("bucket", "position", "vector")},
    **{f"{name} negative": _value(name, 7, -3) for name in ("bucket", "position")},
    **{f"{name} shuffled": _shuffled(name) for name in ("bucket", "position")},
    "bucket and position exchanged": lambda table: table.rename_columns(
        {"bucket": "position", "position": "bucket"}
    ),
    "buckets of another size": _with(
        "bucket", lambda table: pa.array(np.asarray(table["position"]) // 64)
    ),
    "NaN": _value("vector", 7, [float("nan")] * 4),
    "infinity": _value("vector", 7, [float("inf"), 0, 0, 0]),
    "a short vector": _value("vector", 7, [1.0]),
    "an empty vector": _value("vector", 0, []),
    "narrow vectors": _with("vector", lambda table: pa.array([[1.0, 2.0]] * table.num_rows)),
    "another window": _with("sliding_window", lambda table: pa.array([64] * table.num_rows)),
    "no window": _with("sliding_window", lambda table: pa.nulls(table.num_rows, pa.int32())),
    "two windows": _value("sliding_window", 7, 64),
    "no rows": lambda table: table.slice(0, 0),
    "ten thousand buckets": _with("bucket", lambda table: pa.array(np.arange(table.num_rows) * 97)),
}

_MEMBERS = (
    *("format_version", "model", "num_layers", "num_q_heads", "num_k_heads", "head_dim"),
    *("num_examples", "bucket_type", "min_bucket_size", "layer_types", "layers", "sampler"),
)
_VALUES = (None, -1, 0, 2_000_000_000, 10**30, 1.5, "x", [], [None], {}, [[]] * 9)


def set_member(dump, member, value):
    """Change a member of dump.json."""
    path = dump / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {member: value}))
