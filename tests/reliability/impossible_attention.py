"""Columns of queries and keys that no attention has, and scales and soft-caps that no layer has."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qk_dump.columns import ATTENTION_COLUMNS, MASS_BINS, MASSES
from reliability.damaged_files import KEYS, QUERIES, Expected, damaged, whole_dump

ROWS = (0, 7, 100)  # of about 200
ATTENDED = f"attended/{KEYS}"
SOME_ROWS = slice(40, 80)


def impossible_attention(folder, step):
    """One impossible value, through the command `analyze`, with and without dump.json."""
    whole = whole_dump(folder / "whole", received=True)
    expected = Expected.of(whole, folder)
    for name, damage in [*_damages()][::step]:
        yield name, damaged(whole, damage, folder, expected)


def _damages():
    for name, column, change in _changes():
        yield name, lambda dump, c=column, f=change: _change(dump, c, f)
        yield f"{name}, without dump.json", lambda dump, c=column, f=change: _alone(dump, c, f)
    for file, name, value in _impossible_keys():
        change = _in_rows(7, _constant(value))
        yield (
            f"{file}: {name} {value!r:.20}",
            lambda dump, f=file, n=name, c=change: _change(dump, n, c, f),
        )
    for name in ATTENTION_COLUMNS:
        yield f"without {name}", lambda dump, n=name: _rename(dump, {n: None})
        yield f"{name} renamed", lambda dump, n=name: _rename(dump, {n: f"{n[:-1]}_"})
    yield (
        "lse and entropy exchanged",
        lambda dump: _rename(dump, {"lse": "entropy", "entropy": "lse"}),
    )
    yield "a sum of 0.9", lambda dump: _change(dump, MASSES, _in_rows(ROWS[1], lambda v: v * 0.9))
    for member in ("scale", "softcap"):
        for value in (1e300, 1e-300, 0, -1.0, math.nan, math.inf, "1", True):
            yield f"{member}: {value!r}", lambda dump, m=member, v=value: _set(dump, m, v)
    yield "softcap: 1e-9", lambda dump: _set(dump, "softcap", 1e-9)
    yield "chunks in place of a window", lambda dump: _set(dump, "type", "chunked_attention")


def _changes():
    """(name, column, change of its values)."""
    for row in ROWS:
        for name, values in _IMPOSSIBLE.items():
            for value in values:
                yield f"row {row}: {name} {value!r:.20}", name, _in_rows(row, _constant(value))
    for name, shift in (("argmax_position", 60), ("duplicate_keys", 500), ("induction_keys", 500)):
        yield f"all rows: {name} {shift:+}", name, _in_rows(slice(None), lambda v, s=shift: v + s)
    for name, shift in (("max_logit", 6.0), ("max_logit", -6.0), ("lse", -4.0), ("lse", 6.0)):
        yield f"some rows: {name} {shift:+g}", name, _in_rows(SOME_ROWS, lambda v, s=shift: v + s)
        yield f"all rows: {name} {shift:+g}", name, _in_rows(slice(None), lambda v, s=shift: v + s)
    yield "entropy shuffled", "entropy", np.random.default_rng(0).permutation
    for name in ("lse", "max_logit", "entropy", "sink_mass"):
        yield f"{name} times 10", name, _in_rows(slice(None), lambda v: v * 10)


def _bins(**weights):
    return [weights.get(f"b{number}", 0.0) for number in range(MASS_BINS)]


_IMPOSSIBLE = {
    "lse": (math.nan, math.inf, 1e30, -1e30, 30.0, -30.0),
    "max_logit": (math.nan, -math.inf, 1e30, -1e30, 30.0, -30.0),
    "entropy": (math.nan, math.inf, -0.5, 9.0),
    "sink_mass": (math.nan, -0.2, 1.2),
    MASSES: (
        _bins(b0=math.nan),
        _bins(b0=1.5, b1=-0.5),
        _bins(b0=0.7, b1=0.7),
    ),
    "first_mass": (math.nan, -0.2, 1.2),
    "argmax_position": (-5, 10_000),
    "argmax_token": (-5,),
    "duplicate_mass": (math.nan, -0.2, 1.2),
    "duplicate_keys": (-5, 10_000),
    "induction_mass": (math.nan, -0.2, 1.2),
    "induction_keys": (-5, 10_000),
}
_IMPOSSIBLE_KEYS = {
    "received": ([math.nan, 0.1], [-0.2, 0.1], [0.1, 1.5]),
    "inclusion": (math.nan, 0.0, -0.5, 1.5),
    "value_norm": (math.inf, -1.0),
    "token_id": (-5,),
}


def _impossible_keys():
    """(file, column, value) of keys, of the base sample and drawn by attention."""
    for file in (KEYS, ATTENDED):
        for name, values in _IMPOSSIBLE_KEYS.items():
            yield from ((file, name, value) for value in values)


def _constant(value):
    return lambda values: value


def _in_rows(rows, change):
    def changed(values):
        values = values.copy()
        values[rows] = change(values[rows])
        return values

    return changed


def _change(dump, name, change, file=QUERIES):
    """Exchange the values of a column; the file gets new checksums."""
    table = pq.read_table(dump / file)
    kind = table.schema.field(name).type
    stored = np.int64 if pa.types.is_integer(kind) else np.float64
    values = np.array(table[name].to_pylist(), stored)  # (n,) or (n, bins)
    column = pa.array(change(values).tolist(), kind)
    place = table.schema.get_field_index(name)
    pq.write_table(table.set_column(place, name, column), dump / file)


def _alone(dump, name, change):
    (dump / "dump.json").unlink()
    _change(dump, name, change)


def _rename(dump, names):
    """Remove or rename columns, without the names in the metadata of the file."""
    table = pq.read_table(dump / QUERIES).replace_schema_metadata(None)
    table = table.drop_columns([name for name, new in names.items() if new is None])
    pq.write_table(
        table.rename_columns({n: new for n, new in names.items() if new}), dump / QUERIES
    )


def _set(dump, member, value):
    """A member of the layer in dump.json."""
    content = json.loads((dump / "dump.json").read_text())
    content["layers"][0][member] = value
    (dump / "dump.json").write_text(json.dumps(content))
