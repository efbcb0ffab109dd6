"""Bits flipped, files cut, exchanged and replaced, columns that contradict each other."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from attention_plasticity.config import make_config
from attention_plasticity.run.fingerprints import InputFiles
from attention_plasticity.run.plan import make_plan
from attention_plasticity.run.records import Records, run_settings
from captures import HEADS, add, opened, schema_of, segments
from dumps import make_dump
from odd_files import NOT_REGULAR, huge, replace_by
from qk_dump.examples import Example, write_examples
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.reader import HeadRows, read_head
from qk_dump.source import open_dump
from qk_sniffer.pipeline.blocks import DamagedSegmentError, Segment, read_segment
from qk_toolkit.errors import DumpError
from reliability.outcomes import Cases, Ended, Outcome, command

QUERIES, KEYS = "l00h00q/data.parquet", "l00h00k/data.parquet"
BESIDE = ("dump.json", "examples.parquet", "README.md")
TABLES = (
    *("head_metrics.csv", "head_bucket_plasticity.csv"),
    *("head_component_weights.csv", "head_influences.csv"),
)

Damage = Callable[[Path], object]


def flips(data: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    """The data with one bit flipped, bit after bit."""
    for number in range(0, 8 * len(data), step):
        place, bit = divmod(number, 8)
        wrong = bytearray(data)
        wrong[place] ^= 1 << bit
        yield number, bytes(wrong)


def flipped_head_file(folder: Path, step: int) -> Cases:
    """Every bit of a head's file, read by the analysis's reader."""
    make_dump(folder, layers=1, q_heads=1, k_heads=1, n=200, d=8)
    file = folder / KEYS
    right = file.read_bytes()
    expected = _rows(file)
    for number, wrong in flips(right, step):
        file.write_bytes(wrong)
        yield f"bit {number}", _outcome(lambda: _same_rows(_rows(file), expected))


def _rows(file: Path) -> HeadRows:
    return read_head([file], max_rows=10**6, seed=0, with_examples=True)


def _same_rows(one: HeadRows, other: HeadRows) -> bool:
    arrays = ("bucket", "position", "vectors", "example_id")
    same = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
    return same and one.sliding_window == other.sliding_window


def _outcome(accepted: Callable[[], bool]) -> Outcome:
    """`accepted` says whether what was accepted is right."""
    try:
        return Outcome.UNHARMED if accepted() else Outcome.WRONG
    except (DumpError, DamagedSegmentError):
        return Outcome.REFUSED
    except Exception:
        return Outcome.TRACEBACK


def flipped_segment(folder: Path, step: int) -> Cases:
    """Every bit of a segment of an unfinished capture, as a resumed capture reads it."""
    capture = opened(folder)
    add(capture, [1])
    capture.flush()
    [place] = segments(folder)
    whole = read_segment(place)
    assert whole is not None
    expected = _segment_rows(whole)
    for file in sorted(place.iterdir()):
        right = file.read_bytes()
        for number, wrong in flips(right, step):
            file.write_bytes(wrong)
            found = read_segment(place)
            outcome = Outcome.REFUSED
            if found is not None:
                same = (found.batches, found.num_rows) == (whole.batches, whole.num_rows)
                outcome = _outcome(
                    lambda found=found, same=same: same and _segment_rows(found) == expected
                )
            yield f"{file.name} bit {number}", outcome
        file.write_bytes(right)
    capture.close()


def _segment_rows(segment: Segment) -> list[pa.Table]:
    return [segment.rows(expected.head, schema_of(expected)) for expected in HEADS]


def flipped_record(folder: Path, step: int) -> Cases:
    """Every bit of a finished head's record, as a continued run reads it."""
    dump = make_dump(folder / "dump", layers=1, q_heads=1, k_heads=1, n=60, d=2)
    out = folder / "out"
    words = ("analyze", "--dataset_local_root", dump, "--output_dir", out, "--max_workers", 1)
    assert command(*words).code == 0
    config = make_config(dataset_local_root=str(dump))
    inputs = InputFiles(open_dump(dump))
    plan = make_plan(open_dump(dump), config)
    records = Records(out, run_settings(config, plan.layout))
    expected = records.load(0, 0)
    file = out / ".heads" / "l00h00.json"
    right = file.read_bytes()
    for number, wrong in flips(right, step):
        file.write_bytes(wrong)
        outcome = Outcome.REFUSED  # the head is computed again
        try:
            if records.finished_heads(inputs).metrics:
                same = records.load(0, 0) == expected
                outcome = Outcome.UNHARMED if same else Outcome.WRONG
        except Exception:
            outcome = Outcome.TRACEBACK
        yield f"bit {number}", outcome


def damaged_dump(folder: Path, step: int) -> Cases:
    """A dump with one file damaged, through the command `analyze`."""
    whole = _whole_dump(folder / "whole")
    words = ("--output_dir", folder / "out", "--max_workers", 1)
    assert command("analyze", "--dataset_local_root", whole, *words).code == 0
    expected = {name: (folder / "out" / name).read_text() for name in TABLES}
    for number, (name, damage) in enumerate(_damages()):
        if number % step:
            continue
        for place in ("dump", "out"):
            shutil.rmtree(folder / place, ignore_errors=True)
        dump = Path(shutil.copytree(whole, folder / "dump"))
        damage(dump)
        before = _regular_files(dump)
        ended = command("analyze", "--dataset_local_root", dump, *words)
        outcome = _judged(ended, folder / "out", expected)
        if _regular_files(dump) != before:
            outcome = Outcome.LOST
        yield name, outcome


def _judged(ended: Ended, out: Path, expected: dict[str, str]) -> Outcome:
    """A run may leave out heads and say so; no row of another head may differ."""
    if ended.traceback or ended.code not in (0, 1, 2):
        return Outcome.TRACEBACK
    found = {name: (out / name).read_text() for name in TABLES if (out / name).exists()}
    if "texts per query bucket is not known" in ended.told:  # one column is without values
        found, expected = _without_texts(found), _without_texts(expected)
    if ended.code == 0:
        return Outcome.UNHARMED if found == expected else Outcome.WRONG
    known = {name: set(text.splitlines()) for name, text in expected.items()}
    right = all(set(text.splitlines()) <= known[name] for name, text in found.items())
    return Outcome.REFUSED if right else Outcome.WRONG


def _without_texts(tables: dict[str, str]) -> dict[str, str]:
    frames = {name: pd.read_csv(io.StringIO(text), dtype=str) for name, text in tables.items()}
    return {
        name: frame.drop(columns="n_texts", errors="ignore").to_csv()
        for name, frame in frames.items()
    }


def _whole_dump(folder: Path) -> Path:
    """Two query heads and one key head, with everything a capture writes beside them."""
    make_dump(folder, layers=1, q_heads=2, k_heads=1, n=240, d=4, window=512)
    facts = {
        "model": "tiny",
        "num_layers": 1,
        "num_q_heads": 2,
        "num_k_heads": 1,
        "head_dim": 4,
        "num_examples": 4,
        "bucket_type": "uniform",
        "min_bucket_size": 128,
        "layer_types": ["sliding_attention"],
        "layers": [{"layer": 0, "type": "sliding_attention", "rope": True, "window": 512}],
        "sampler": {"type": "uniform", "base_rate": 8.0, "seed": 0},
        "seed": 0,
    }
    write_manifest(folder, DumpManifest(**facts))  # type: ignore[arg-type]
    write_examples(folder, [Example(number, number, 1024, "") for number in range(4)])
    (folder / "README.md").write_text("# a dump\n")
    return folder


def _regular_files(folder: Path) -> dict[str, bytes]:
    small = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): path.read_bytes() for path in small if path.stat().st_size < 1 << 20}


def _damages() -> Iterator[tuple[str, Damage]]:
    for name in (QUERIES, KEYS, *BESIDE):
        for kind, change in _BYTES.items():
            yield f"{name}: {kind}", lambda dump, n=name, c=change: _rewrite(dump / n, c)
        for kind, (make, _) in NOT_REGULAR.items():
            yield f"{name}: {kind}", lambda dump, n=name, m=make: replace_by(m, dump / n)
        yield f"{name}: missing", lambda dump, n=name: (dump / n).unlink()
        yield f"{name}: link to nothing", lambda dump, n=name: _link(dump / n, "nothing")
        yield f"{name}: link to itself", lambda dump, n=name: _link(dump / n, (dump / n).name)
        if name.endswith(".parquet"):
            yield f"{name}: footer without end", lambda dump, n=name: huge(dump / n)
    for name in (QUERIES, KEYS):
        for kind, column in _COLUMNS.items():
            yield f"{name}: {kind}", lambda dump, n=name, c=column: _change(dump / n, c)
    for member in json.loads(_MEMBERS):
        for value in _VALUES:
            yield (
                f"dump.json: {member} = {json.dumps(value)[:30]}",
                lambda dump, m=member, v=value: _set_member(dump / "dump.json", m, v),
            )


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


_BYTES: dict[str, Callable[[bytes], bytes]] = {
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


def _change(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """A file with other columns. The names in its metadata would show it, so they are left out."""
    pq.write_table(change(pq.read_table(path)).replace_schema_metadata(None), path)


def _with(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        column = values(table) if callable(values) else values
        return table.set_column(table.schema.get_field_index(name), name, column)

    return change


def _value(name: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    """One value of a column exchanged."""

    def changed(table: pa.Table) -> pa.Array:
        rows = table[name].to_pylist()
        rows[row] = value
        return pa.array(rows)

    return _with(name, changed)


def _shuffled(name: str) -> Callable[[pa.Table], pa.Table]:
    order = np.random.default_rng(0).permutation
    return _with(name, lambda table: table[name].take(pa.array(order(table.num_rows))))


_COLUMNS: dict[str, Callable[[pa.Table], pa.Table]] = {
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
    "huge examples": _with(
        "example_id", lambda table: pa.array(np.asarray(table["example_id"], np.int64) + 2**62)
    ),
}

_MEMBERS = json.dumps(
    [
        *("format_version", "model", "num_layers", "num_q_heads", "num_k_heads", "head_dim"),
        *("num_examples", "bucket_type", "min_bucket_size", "layer_types", "layers", "sampler"),
    ]
)
_VALUES: tuple[Any, ...] = (None, -1, 0, 2_000_000_000, 10**30, 1.5, "x", [], [None], {}, [[]] * 9)


def _set_member(path: Path, member: str, value: Any) -> None:
    content = json.loads(path.read_text())
    content[member] = value
    with suppress(OSError):
        path.write_text(json.dumps(content))
