"""Rows of a head: scaled once, refused if they are damaged, turned by RoPE."""

from itertools import product

import numpy as np
import pytest

import attention_plasticity as ap
from attention_plasticity.read import rows as package
from attention_plasticity.read.rows import read_keys, read_queries
from dumps import head_rows, write_columns
from head_pairs import analyze, small_head, write_pair
from helpers.attention_dumps import make_attention_dump
from qk_dump.heads import HeadId

KINDS = [*product([np.float16, np.float32, np.float64], [-12, 0, 9]), (np.float32, -140)]


@pytest.mark.parametrize(("dtype", "exponent"), KINDS)
def test_vectors_are_divided_by_a_power_of_two(tmp_path, dtype, exponent):
    """Small numbers of float32 keep their digits."""
    vectors = (small_head(1)["vectors"] * 2.0**exponent).astype(dtype)
    root = write_pair(tmp_path, small_head(2), small_head(1, vectors=vectors))
    keys = read_keys(ap.open_dump(root), 0, 0, ap.make_config())
    assert 0.5 <= np.abs(keys.rows.vectors).max() < 1.0
    np.testing.assert_array_equal(np.ldexp(keys.rows.vectors, keys.exponent), vectors)
    assert keys.after.dtype == np.float32


@pytest.mark.parametrize("kind", ["q", "k"])
@pytest.mark.parametrize("value", [3e15, -1e18, 3e38])
def test_values_that_no_model_has_are_refused_with_file_and_row(tmp_path, kind, value):
    heads = {"q": small_head(1), "k": small_head(2)}
    heads[kind]["vectors"][17, 2] = value
    root = write_pair(tmp_path, heads["q"], heads["k"])
    size = f"{abs(value):.3g}".replace("+", r"\+")
    with pytest.raises(ap.DumpError, match=rf"l00h00{kind}: row 17 has a value of {size}; .*1e"):
        analyze(root)


def test_keys_drawn_by_attention_are_refused_too(tmp_path):
    root = make_attention_dump(tmp_path, received=True, share=0.5)
    rows = head_rows(20, 6, context=48, bucket_size=8)
    rows["vectors"][11] = 1e20
    rows |= {"received": np.ones((20, 1)), "inclusion": np.ones(20)}
    write_columns(root, HeadId(0, 0, "k", attended=True), **rows)
    with pytest.raises(ap.DumpError, match="attended/l00h00k: row 11 has a value of 1e"):
        analyze(root)


@pytest.mark.parametrize(("most", "step"), [(60, 1), (59, 2), (20, 3), (7, 9)])
def test_sums_use_rows_at_even_steps_of_the_file(tmp_path, monkeypatch, most, step):
    monkeypatch.setattr(package, "_MOST_ROWS", most)
    root = write_pair(tmp_path, small_head(1), head_rows(60, 4, examples=5))
    dump, config = ap.open_dump(root), ap.make_config()
    keys = read_keys(dump, 0, 0, config)
    few = keys.evenly
    assert len(few) <= most
    for found, every in (
        (few.position, keys.position),
        (few.after, keys.after),
        (few.weight, keys.weight),
        (few.text, keys.text),
        (few.group, keys.group),
    ):
        np.testing.assert_array_equal(found, every[::step])
    queries = read_queries(dump, 0, 0, keys, ap.make_config(single_example=True))
    assert queries.evenly.group is None
    assert len(queries.evenly) == len(range(0, 60, step))
