"""Attention columns of query files: what is read, what is null, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from head_files import LATE, columns, read, refusal, save
from qk_dump.attention_columns import (
    ATTENTION_COLUMNS,
    ATTENTION_TYPES,
    KEY_COLUMNS,
    TOKEN_COLUMNS,
    AttentionRows,
    first_distances,
)
from qk_dump.layout import HeadId
from qk_dump.writer import write_head

NAMES = ATTENTION_COLUMNS[:-1]
INTEGERS = ("argmax_position", "argmax_token", "duplicate_keys", "induction_keys")
MORE = (*KEY_COLUMNS, *TOKEN_COLUMNS)


def attention(n: int = 6, bins: int = 24, **changes: Any) -> dict[str, Any]:
    """Queries at positions 0 to 99 whose keys all have one logit, another one in every row."""
    logit, keys = np.arange(n) % 50 / 10, np.arange(n) % 100 + 1.0
    starts = np.array(first_distances(bins))
    counts = np.diff(np.minimum(np.append(starts, np.inf), keys[:, None]), axis=1)  # (n, bins)
    masses = (counts / keys[:, None]).astype(np.float32)
    values = (logit + np.log(keys), logit, np.log(keys), np.minimum(keys, 4) / keys)
    found: dict[str, Any] = {
        name: pa.array(column, pa.float32()) for name, column in zip(NAMES, values, strict=True)
    }
    found["mass_by_distance"] = pa.array(masses.tolist(), pa.list_(pa.float32(), bins))
    return {**found, **changes}


def more_attention(n: int = 6, **changes: Any) -> dict[str, Any]:
    """The same queries. Every second key of a text has one token, the others another one."""
    keys = np.arange(n) % 100 + 1.0
    number = (keys - 1) // 2
    values = (1 / keys, keys * 0, keys % 2, number / keys, number, number / keys, number)
    found = {
        name: pa.array(column, pa.int32() if name in INTEGERS else pa.float32())
        for name, column in zip(MORE, values, strict=True)
    }
    return {**attention(n), **found, **changes}


def lists(masses: list[Any], kind: Any = None) -> pa.Array:
    return pa.array(masses, pa.list_(pa.float32()) if kind is None else kind)


def masses_with(row: int, values: list[float] | None) -> dict[str, Any]:
    """Lists of two bins, one of them changed."""
    content = attention(bins=2)
    masses = content["mass_by_distance"].to_pylist()
    masses[row] = values
    return {**content, "mass_by_distance": lists(masses)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    n = 6
    possible = attention(n)
    numbers = [np.array(possible[name]) for name in NAMES]
    rows = AttentionRows(*numbers, np.array(possible["mass_by_distance"].to_pylist(), np.float32))
    rows.lse[2] = np.nan
    content = {name: np.asarray(values) for name, values in columns(n).items() if name != "vector"}
    write_head(
        tmp_path,
        HeadId(0, 0, "q"),
        bucket=content["bucket"],
        example_id=content["example_id"],
        position=content["position"],
        vectors=np.ones((n, 3), np.float32),
        attention=rows,
    )
    file = tmp_path / "l00h00q" / "data.parquet"
    assert read(file).attention is None  # not requested
    found = read(file, with_attention=True).attention
    assert found is not None
    known = [0, 1, 3, 4, 5]
    for name in ATTENTION_COLUMNS:
        np.testing.assert_array_equal(getattr(found, name)[known], getattr(rows, name)[known])
        assert np.isnan(getattr(found, name)[2]).all()


@pytest.mark.parametrize("bins", [1, 5, 64])
@pytest.mark.parametrize("kind", ["fixed", "list", "large_list"])
def test_lists_of_any_type_and_number_of_bins(tmp_path: Path, bins: int, kind: str) -> None:
    types = {
        "fixed": pa.list_(pa.float64(), bins),
        "list": pa.list_(pa.float16()),
        "large_list": pa.large_list(pa.float32()),
    }
    masses = attention(bins=bins)["mass_by_distance"].to_pylist()
    if kind == "list":
        masses = [[np.float16(value) for value in row] for row in masses]
    content = attention(mass_by_distance=pa.array(masses, types[kind]))
    found = read(save(tmp_path / "a.parquet", **content), with_attention=True).attention
    assert found is not None
    np.testing.assert_array_equal(found.mass_by_distance, np.array(masses, np.float32))
    assert len(first_distances(bins)) == bins


@pytest.mark.parametrize("name", ATTENTION_COLUMNS)
def test_a_null_makes_the_whole_row_unknown(tmp_path: Path, name: str) -> None:
    content = attention()
    values = content[name].to_pylist()
    values[3] = None
    content[name] = pa.array(values, content[name].type)
    found = read(save(tmp_path / "a.parquet", **content), with_attention=True).attention
    assert found is not None
    for column in ATTENTION_COLUMNS:
        null = np.isnan(getattr(found, column).reshape(6, -1)).all(axis=1)
        assert np.flatnonzero(null).tolist() == [3]


def test_rows_that_are_all_null_are_no_attention(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {name: pa.array([None] * 6, pa.float32()) for name in NAMES}
    for kind in (pa.list_(pa.float32(), 24), pa.list_(pa.float32())):
        content = {**nothing, "mass_by_distance": pa.array([None] * 6, kind)}
        file = save(tmp_path / "a.parquet", **content)
        assert read(file, with_attention=True).attention is None


def test_columns_in_some_shards_are_no_attention(tmp_path: Path) -> None:
    both = save(tmp_path / "a.parquet", **attention())
    plain = save(tmp_path / "b.parquet")
    assert read(both, plain, with_attention=True).attention is None
    assert read(plain, both, with_attention=True).attention is None


def test_a_file_with_some_of_the_columns_is_refused(tmp_path: Path) -> None:
    """Also if attention is not read: a name may be damaged."""
    for missing in (["lse"], ["entropy", "mass_by_distance"], list(ATTENTION_COLUMNS[1:])):
        content = {name: values for name, values in attention().items() if name not in missing}
        file = save(tmp_path / "a.parquet", **content)
        for with_attention in (False, True):
            message = refusal(file, with_attention=with_attention)
            assert f"has some attention columns and lacks {', '.join(missing)} (found: " in message
            assert "remove the attention columns" in message


def test_columns_of_keys_and_tokens_are_read_and_written(tmp_path: Path) -> None:
    """Rows without a known token, and rows without known attention, are null."""
    content = more_attention()
    for name in TOKEN_COLUMNS:
        content[name] = pa.array([*content[name].to_pylist()[:5], None], content[name].type)
    lse = content["lse"].to_pylist()
    content["lse"] = pa.array([*lse[:3], None, *lse[4:]], pa.float32())
    found = read(save(tmp_path / "a.parquet", **content), with_attention=True).attention
    assert found is not None
    for name, values in found.columns.items():
        missing = values < 0 if name in INTEGERS else np.isnan(values.reshape(6, -1)).all(axis=1)
        expected = [3, 5] if name in TOKEN_COLUMNS else [3]
        assert np.flatnonzero(missing).tolist() == expected, name
    assert found.argmax_token.tolist() == [1, 0, 1, -1, 1, -1]
    rows = {name: np.asarray(values) for name, values in columns().items() if name != "vector"}
    del rows["sliding_window"]
    vectors = np.ones((6, 3), np.float32)
    file = write_head(tmp_path, HeadId(0, 0, "q"), vectors=vectors, attention=found, **rows)
    again = read(file, with_attention=True).attention
    assert again is not None
    assert again.columns.keys() == found.columns.keys() == ATTENTION_TYPES.keys()
    for name, values in found.columns.items():
        np.testing.assert_array_equal(values, again.columns[name])


@pytest.mark.parametrize("missing", MORE)
def test_a_unit_is_whole_or_not_there(tmp_path: Path, missing: str) -> None:
    content = more_attention()
    del content[missing]
    message = refusal(save(tmp_path / "a.parquet", **content))
    assert f"has some attention columns and lacks {missing} (found: " in message


def test_units_build_on_each_other(tmp_path: Path) -> None:
    """Private dumps have no columns by token. Columns of keys alone say nothing."""
    content = more_attention()
    private = {name: content[name] for name in (*ATTENTION_COLUMNS, *KEY_COLUMNS)}
    found = read(save(tmp_path / "a.parquet", **private), with_attention=True).attention
    assert found is not None
    assert found.first_mass is not None
    assert found.argmax_token is None
    for names in (MORE, KEY_COLUMNS, (*ATTENTION_COLUMNS, *TOKEN_COLUMNS)):
        alone = {name: content[name] for name in names}
        assert "lacks" in refusal(save(tmp_path / "a.parquet", **alone))


def test_shards_without_the_new_columns_leave_the_others(tmp_path: Path) -> None:
    new = save(tmp_path / "a.parquet", **more_attention(), token_id=pa.array(range(6)))
    old = save(tmp_path / "b.parquet", **attention())
    for files in ((new, old), (old, new)):
        found = read(*files, with_attention=True, with_tokens=True)
        assert found.attention is not None
        assert set(found.attention.columns) == set(ATTENTION_COLUMNS)
        assert found.token_id is None


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_checked(tmp_path: Path, name: str) -> None:
    file = tmp_path / "a.parquet"
    for kind in (pa.float32(), pa.string()):
        message = refusal(
            save(file, **more_attention(**{name: pa.array([None] * 6, kind)})), with_attention=True
        )
        assert f"column '{name}' is {kind}, expected an integer" in message
    for value in (-1, 2**31):
        values = [0, 0, value, 0, 0, 0]
        content = more_attention(**{name: pa.array(values, pa.int64())})
        message = refusal(save(file, **content), with_attention=True)
        assert f"row 2: impossible value in {name} ({value})" in message


def test_tokens_and_lengths_of_values(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    token = pa.array([5, None, 0, 1, 2, 2**31 - 1])
    norm = pa.array([1.5, 0, None, 1, 2, 3], pa.float32())
    save(file, token_id=token, value_norm=norm)
    found = read(file, with_tokens=True, with_attention=True)
    assert found.token_id is not None
    assert found.token_id.tolist() == [5, -1, 0, 1, 2, 2**31 - 1]
    assert np.array_equal(found.value_norm, [1.5, 0, np.nan, 1, 2, 3], equal_nan=True)
    some = read(file, with_tokens=True, max_rows=3, seed=1)
    kept = np.sort(np.random.default_rng(1).choice(6, 3, replace=False))
    assert some.token_id is not None
    assert some.token_id.tolist() == found.token_id[kept].tolist()
    assert found.of_texts(np.array([1])).token_id.tolist() == found.token_id[3:].tolist()
    assert read(file).token_id is None
    assert read(file).value_norm is None


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("token_id", pa.array([0.5] * 6), "column 'token_id' is double, expected an integer"),
        ("token_id", pa.array([0, -3, 0, 0, 0, 0]), "row 1: impossible value in token_id (-3)"),
        ("value_norm", pa.array(range(6)), "column 'value_norm' is int64, expected a float"),
        ("value_norm", pa.array([0.0] * 5 + [-1.0]), "row 5: impossible value in value_norm (-1)"),
        ("value_norm", pa.array([np.inf] * 6), "row 0: impossible value in value_norm (inf)"),
    ],
    ids=str,
)
def test_wrong_tokens_and_lengths_are_refused(
    tmp_path: Path, name: str, values: pa.Array, message: str
) -> None:
    file = save(tmp_path / "a.parquet", **{name: values})
    assert message in refusal(file, with_tokens=True, with_attention=True)
    read(file)  # readers of the other columns do not notice


TYPES = {
    "integers": ({"lse": pa.array(range(6))}, "column 'lse' is int64, expected a float"),
    "text": ({"entropy": pa.array(["1"] * 6)}, "column 'entropy' is string, expected a float"),
    "no list": (
        {"mass_by_distance": pa.array([0.5] * 6)},
        "column 'mass_by_distance' is double, expected a list of floats",
    ),
    "list of integers": (
        {"mass_by_distance": lists([[1]] * 6, pa.list_(pa.int64()))},
        "expected a list of floats",
    ),
    "too many bins": (
        {"mass_by_distance": lists([[0.0] * 65] * 6)},
        "mass_by_distance has 65 bins, expected 1 to 64",
    ),
    "no bins": ({"mass_by_distance": lists([[]] * 6)}, "has 0 bins, expected 1 to 64"),
    "ragged": (
        {"mass_by_distance": lists([[0.1], [0.1, 0.2]] * 3)},
        "row 1: mass_by_distance has another number of bins",
    ),
}


@pytest.mark.parametrize(("changes", "message"), TYPES.values(), ids=TYPES)
def test_wrong_types_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = save(tmp_path / "a.parquet", **attention(**changes))
    assert message in refusal(file, with_attention=True)
    read(file)  # readers of the other columns do not notice


def with_value(name: str, value: float) -> dict[str, Any]:
    content = attention()
    values = content[name].to_pylist()
    values[4] = value
    return {**content, name: pa.array(values, pa.float64())}


NOT_FINITE = {
    **{f"NaN in {name}": (with_value(name, np.nan), name, "nan") for name in NAMES},
    **{f"infinity in {name}": (with_value(name, np.inf), name, "inf") for name in NAMES},
    "too large for float32": (with_value("lse", 1e300), "lse", "inf"),
    "NaN mass": (masses_with(4, [0.5, np.nan]), "mass_by_distance", "nan"),
}


@pytest.mark.parametrize(("content", "name", "shown"), NOT_FINITE.values(), ids=NOT_FINITE)
def test_numbers_that_are_not_finite_are_refused(
    tmp_path: Path, content: dict[str, Any], name: str, shown: str
) -> None:
    file = save(tmp_path / "a.parquet", **content)
    message = f"row 4: impossible value in {name} ({shown}). Capture or download the head again."
    assert message in refusal(file, with_attention=True)


def test_null_lists_of_open_length_are_unknown_rows(tmp_path: Path) -> None:
    """A part of the rows shows no number of bins; the other rows keep their values."""
    nothing: dict[str, Any] = {name: pa.array([None] * 6, pa.float32()) for name in NAMES}
    nothing["mass_by_distance"] = lists([None] * 6)
    null = [save(tmp_path / f"{name}.parquet", **nothing) for name in "ac"]
    known = save(tmp_path / "b.parquet", **attention(bins=2))
    found = read(null[0], known, null[1], with_attention=True).attention
    assert found is not None
    assert np.isnan(found.lse).tolist() == [True] * 6 + [False] * 6 + [True] * 6
    assert np.isnan(found.mass_by_distance).all(axis=1).tolist() == np.isnan(found.lse).tolist()
    assert found.mass_by_distance[6:8].tolist() == [[1, 0], [0.5, 0.5]]


def test_late_rows_are_named(tmp_path: Path) -> None:
    n = LATE + 3
    content = attention(n)
    for value, name in ((np.inf, "lse"), (-50.0, "max_logit")):
        lse = np.array(content["lse"])
        lse[LATE] = value
        file = save(tmp_path / "a.parquet", n, **{**content, "lse": pa.array(lse)})
        assert f"row {LATE}: impossible value in {name} (" in refusal(file, with_attention=True)


def test_shards_with_different_bins_are_refused(tmp_path: Path) -> None:
    one = save(tmp_path / "a.parquet", **attention(bins=24))
    two = save(tmp_path / "b.parquet", **attention(bins=12))
    message = refusal(one, two, with_attention=True)
    assert "mass_by_distance has 12 bins, earlier rows of this head 24" in message


def test_a_subsample_has_the_attention_of_its_rows(tmp_path: Path) -> None:
    file = save(tmp_path / "a.parquet", 300, **attention(300))
    found = read(file, max_rows=40, seed=3, with_attention=True)
    kept = np.sort(np.random.default_rng(3).choice(300, 40, replace=False))
    assert found.attention is not None
    np.testing.assert_allclose(found.attention.max_logit, kept % 50 / 10, rtol=1e-6)
