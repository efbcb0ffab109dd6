"""Every column of a head's file, once: name, type, kind of row, unit, accepted types, law, meaning.

Schema, writer, reader, checks, dataset card and the table in docs/data-format.md come from `TABLE`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from qk_dump.heads import Kind
from qk_dump.rows import Rows
from qk_toolkit.arrays import Array, Bools

BUCKET, EXAMPLE, POSITION, VECTOR = "bucket", "example_id", "position", "vector"
WINDOW = "sliding_window"
LSE, MAX_LOGIT, ENTROPY, SINK_MASS = "lse", "max_logit", "entropy", "sink_mass"
MASSES = "mass_by_distance"
FIRST_MASS, ARGMAX_POSITION, ARGMAX_TOKEN = "first_mass", "argmax_position", "argmax_token"
DUPLICATE_MASS, DUPLICATE_KEYS = "duplicate_mass", "duplicate_keys"
INDUCTION_MASS, INDUCTION_KEYS = "induction_mass", "induction_keys"
TOKEN_ID, VALUE_NORM = "token_id", "value_norm"
RECEIVED, INCLUSION = "received", "inclusion"
LAYER, HEAD = "layer", "head"

SINK_TOKENS = 4
MASS_BINS = 24  # written; the last one also holds all larger distances
MOST_MASS_BINS = 64  # read; distances of 2^63 and more do not exist
ROUNDING = 1e-2  # of logits, of entropies and of weights
_RELATIVE_ROUNDING = 2.0**-7  # of logits and entropies; a bfloat16 is rounded by half of it
_LARGEST_POSITION = 2.0**53  # beyond, float64 cannot represent every integer

Check = Callable[[Rows, Array], Bools]
"""Which rows (n,) break the law of a column. The second argument is the number of visible keys."""


@dataclass(frozen=True)
class Accepted:
    """The types of a column that can be read."""

    words: str
    test: Callable[[pa.DataType], bool]


@dataclass(frozen=True)
class Column:
    """A column of a head's file."""

    name: str
    type: pa.DataType  # as written; `schema_of` gives `vector` and `received` their width
    accepted: Accepted
    meaning: str
    kind: str = "qk"  # of the rows that have it
    unit: str = ""  # the columns of a unit come together; "": every file has it
    null: str = ""  # what a null means; "": there is none
    law: str = ""  # of the values
    broken: Check | None = None


def _is_list(found: pa.DataType) -> bool:
    return bool(
        kinds.is_list(found) or kinds.is_large_list(found) or kinds.is_fixed_size_list(found)
    )


_INTEGER = Accepted("an integer", kinds.is_integer)
_NUMBER = Accepted(
    "an integer or float", lambda found: kinds.is_integer(found) or kinds.is_floating(found)
)
_FLOAT = Accepted("a float", kinds.is_floating)
_FLOATS = Accepted(
    "a list of float16, float32 or float64",
    lambda found: _is_list(found) and kinds.is_floating(found.value_type),
)
_INTEGER_OR_NULL = Accepted(
    "an integer or null", lambda found: kinds.is_integer(found) or kinds.is_null(found)
)


def _outside(values: Any, least: Any, most: Any, rounding: Any = ROUNDING) -> Bools:
    """(n,) values beyond a range, with rounding. NaN, a value that is not known, is not."""
    with np.errstate(invalid="ignore"):
        return np.asarray((values < least - rounding) | (values > most + rounding))


def _no_weight(name: str) -> Check:
    return lambda rows, _: _outside(rows[name], 0, 1)


def _total(rows: Rows, rounding: float) -> Array:
    """(n,) the weight of all visible keys; below 1 if a learned sink has a part of it."""
    return np.asarray(np.clip(rows[MASSES].sum(axis=1, dtype=np.float64) + rounding, 0, 1))


def _wrong_lse(rows: Rows, seen: Array) -> Bools:
    lse, largest = rows[LSE].astype(np.float64), rows[MAX_LOGIT]
    rounding = ROUNDING + _RELATIVE_ROUNDING * np.maximum(np.abs(lse), np.abs(largest))
    with np.errstate(divide="ignore"):
        most = np.log(seen / _total(rows, -ROUNDING))  # (n,) no limit if sinks have all weight
    return _outside(lse - largest, 0, most, rounding)


def _wrong_entropy(rows: Rows, seen: Array) -> Bools:
    total = _total(rows, ROUNDING)
    rounding = ROUNDING + _RELATIVE_ROUNDING * np.abs(rows[ENTROPY])
    return _outside(rows[ENTROPY], 0, total * np.log(seen / total), rounding)


def _wrong_masses(rows: Rows, _: Array) -> Bools:
    masses = rows[MASSES]  # (n, bins)
    return _outside(masses.min(axis=1), 0, 1) | _outside(masses.sum(axis=1), 0, 1)


def _wrong_argmax(rows: Rows, seen: Array) -> Bools:
    distance = np.floor(rows[POSITION]) - rows[ARGMAX_POSITION]  # (n,)
    return np.asarray((rows[ARGMAX_POSITION] >= 0) & ((distance < 0) | (distance >= seen)))


_INT, _F32, _F64 = pa.int32(), pa.float32(), pa.float64()
NOT_KNOWN = "not known"
_ATTENTION, _KEYS, _TOKENS = "attention", "keys of attention", "attention by token"
_TOKEN, _VALUE, _RECEIVED, _LAYER, _HEAD = "token", "value", "received", "layer", "head"


def _of_query(
    name: str,
    unit: str,
    meaning: str,
    law: str = "",
    broken: Check | None = None,
    type_: pa.DataType = _F32,
) -> Column:
    """An attention column of query files."""
    return Column(name, type_, _accepted(type_), meaning, "q", unit, NOT_KNOWN, law, broken)


def _accepted(type_: pa.DataType) -> Accepted:
    if _is_list(type_):
        return _FLOATS
    return _INTEGER if kinds.is_integer(type_) else _FLOAT


TABLE: tuple[Column, ...] = (
    Column(BUCKET, _INT, _INTEGER, "bucket of the position", law="follows from `position`"),
    Column(EXAMPLE, _INT, _INTEGER, "number of the text; keys need it"),
    Column(
        POSITION,
        _INT,
        _NUMBER,
        "position in the text, from 0",
        law="from 0 to 2^53",
        broken=lambda rows, _: (rows[POSITION] < 0) | (rows[POSITION] > _LARGEST_POSITION),
    ),
    Column(VECTOR, pa.list_(_F32), _FLOATS, "the query or key; one width per head"),
    Column(
        WINDOW,
        _INT,
        _INTEGER_OR_NULL,
        "tokens of the sliding window or chunk; one value per head",
        null="full attention",
        law="positive",
        broken=lambda rows, _: rows[WINDOW] == 0,
    ),
    _of_query(
        LSE,
        _ATTENTION,
        "ln Σ exp(logit) over all keys that the query sees",
        "`max_logit` to `max_logit` + ln(visible keys / sum of `mass_by_distance`)",
        _wrong_lse,
    ),
    _of_query(MAX_LOGIT, _ATTENTION, "the largest logit"),
    _of_query(
        ENTROPY,
        _ATTENTION,
        "−Σ w ln w over the weights w, in nats",
        "0 to ln(visible keys)",
        _wrong_entropy,
    ),
    _of_query(
        SINK_MASS,
        _ATTENTION,
        f"weight of tokens 0 to {SINK_TOKENS - 1}",
        "0 to 1",
        _no_weight(SINK_MASS),
    ),
    _of_query(
        MASSES,
        _ATTENTION,
        "weight at distance 0, 1, 2–3, 4–7, …; the last bin has all larger distances",
        "0 to 1, sum at most 1",
        _wrong_masses,
        pa.list_(_F32, MASS_BINS),
    ),
    _of_query(
        FIRST_MASS,
        _KEYS,
        "weight of token 0",
        "0 to `sink_mass`",
        lambda rows, _: _outside(rows[FIRST_MASS], 0, rows[SINK_MASS]),
    ),
    _of_query(
        ARGMAX_POSITION,
        _KEYS,
        "position of the key with the largest weight; the earliest of equal ones",
        "a visible key",
        _wrong_argmax,
        _INT,
    ),
    _of_query(ARGMAX_TOKEN, _TOKENS, "token of this key", type_=_INT),
    _of_query(
        DUPLICATE_MASS,
        _TOKENS,
        "weight of earlier keys with the token of the query",
        "0 to 1",
        _no_weight(DUPLICATE_MASS),
    ),
    _of_query(
        DUPLICATE_KEYS,
        _TOKENS,
        "number of these keys",
        "less than the visible keys",
        lambda rows, seen: rows[DUPLICATE_KEYS] >= seen,
        _INT,
    ),
    _of_query(
        INDUCTION_MASS,
        _TOKENS,
        "weight of keys whose previous token is the token of the query; its own key can be one",
        "0 to 1",
        _no_weight(INDUCTION_MASS),
    ),
    _of_query(
        INDUCTION_KEYS,
        _TOKENS,
        "number of these keys",
        "at most the visible keys",
        lambda rows, seen: rows[INDUCTION_KEYS] > seen,
        _INT,
    ),
    Column(TOKEN_ID, _INT, _INTEGER, "token of the row", unit=_TOKEN, null=NOT_KNOWN),
    Column(
        VALUE_NORM,
        _F32,
        _FLOAT,
        "length of the value vector as passed to attention",
        "k",
        _VALUE,
        NOT_KNOWN,
        "not negative",
        lambda rows, _: rows[VALUE_NORM] < 0,
    ),
    Column(
        RECEIVED,
        pa.list_(_F32),
        _FLOATS,
        "mean weight that evenly spaced queries of the text give the key, 0 from those before it; "
        "one value for every query head of the key head, in their order",
        "k",
        _RECEIVED,
        NOT_KNOWN,
        "0 to 1",
        lambda rows, _: np.asarray(_outside(rows[RECEIVED], 0, 1, 1e-3).any(axis=1)),
    ),
    Column(
        INCLUSION,
        _F64,
        _FLOAT,
        "probability that the key is in the dump, drawn by position or by attention",
        "k",
        _RECEIVED,
        law="above 0, at most 1",
        broken=lambda rows, _: (rows[INCLUSION] <= 0) | (rows[INCLUSION] > 1),
    ),
    Column(LAYER, _INT, _INTEGER, "layer of the file", unit=_LAYER, law="as the folder says"),
    Column(HEAD, _INT, _INTEGER, "head of the file", unit=_HEAD, law="as the folder says"),
)
"""In the order of a written file."""

COLUMNS: dict[str, Column] = {column.name: column for column in TABLE}
UNITS: dict[str, tuple[str, ...]] = {
    unit: tuple(column.name for column in TABLE if column.unit == unit)
    for unit in dict.fromkeys(column.unit for column in TABLE)
}
ATTENTION_UNITS = (_ATTENTION, _KEYS, _TOKENS)
"""A file has one of them only together with those before it."""
ATTENTION_COLUMNS = tuple(name for unit in ATTENTION_UNITS for name in UNITS[unit])
RECEIVED_COLUMNS = UNITS[_RECEIVED]


def first_distances(bins: int = MASS_BINS) -> list[int]:
    """The smallest distance of every bin: 0, 1, 2, 4, 8 and so on."""
    return [0, *(1 << power for power in range(bins - 1))]


def written_names(kind: Kind, *, attention: bool, tokens: bool, received: bool) -> tuple[str, ...]:
    """The columns that a capture with these settings writes, without `layer` and `head`."""
    wanted = {
        "": True,
        _ATTENTION: attention,
        _KEYS: attention,
        _TOKENS: attention and tokens,
        _TOKEN: tokens,
        _VALUE: attention,
        _RECEIVED: received,
        _LAYER: False,
        _HEAD: False,
    }
    return tuple(column.name for column in TABLE if kind in column.kind and wanted[column.unit])


def schema_of(
    names: Collection[str], width: int, *, half: bool = False, group: int = 0
) -> pa.Schema:
    """The schema of a file with these columns, `layer` and `head`, in the order of the table.

    `width` is that of the vectors, which are float16 with `half`. `group` is the number of values
    in `received`.
    """
    types = {
        **{column.name: column.type for column in TABLE},
        VECTOR: pa.list_(pa.float16() if half else _F32, width),
        RECEIVED: pa.list_(_F32, group),
    }
    unknown = sorted(set(names) - set(types))
    if unknown:
        raise ValueError(f"there is no column {unknown[0]!r}")
    written = [name for name in types if name in names or name in (LAYER, HEAD)]
    return pa.schema([(name, types[name]) for name in written])


def table_of(rows: Rows, layer: int, schema: pa.Schema, head: int | None = None) -> pa.Table:
    """The rows as a table of a file. A value that is not known becomes null.

    `head` is that of all rows; without it, the rows have the column `head`.
    """
    same = {LAYER: layer} if head is None else {LAYER: layer, HEAD: head}
    columns = [
        pa.repeat(pa.scalar(same[field.name], _INT), len(rows))
        if field.name in same
        else _arrow(rows[field.name], field.type, nulls=bool(COLUMNS[field.name].null))
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _arrow(values: npt.NDArray[Any], type_: pa.DataType, *, nulls: bool) -> pa.Array:
    """A column (n,) or (n, w); with `nulls`, NaN and −1 become null."""
    unknown = None
    if nulls:
        unknown = np.asarray(np.isnan(values) if values.dtype.kind == "f" else values < 0)
    if values.ndim == 1:
        if kinds.is_integer(type_):
            return pa.array(values, mask=unknown).cast(type_)  # refuses what does not fit
        return pa.array(np.ascontiguousarray(values, type_.to_pandas_dtype()), mask=unknown)
    mask = None
    if unknown is not None:
        missing = np.asarray(unknown.any(axis=1))  # (n,)
        mask = pa.array(missing)
        values = np.where(missing[:, None], 0, values)
    flat = np.ascontiguousarray(values, type_.value_type.to_pandas_dtype()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), values.shape[1], mask=mask)
