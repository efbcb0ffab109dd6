"""Keys with those drawn by attention: their weights, and files that do not fit together."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attention_plasticity as ap
from attention_plasticity.read.pool import read_pool
from attention_plasticity.read.rows import read_keys
from attention_plasticity.read.texts import DumpTexts
from dumps import add_attended, write_columns
from helpers.attention_dumps import make_attention_dump
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.positions import joint_inclusion


def pool_of(root, **settings):
    dump, config = ap.open_dump(root), ap.make_config(**settings)
    return read_pool(dump, 0, 0, read_keys(dump, 0, 0, config), config)


def test_base_and_drawn_keys_are_one_pool(tmp_path):
    """The weight of a key is 1/inclusion; vectors have the unit of the base keys."""
    root = make_attention_dump(tmp_path, share=0.4, q_heads=2, received=True)
    dump, config = ap.open_dump(root), ap.make_config()
    keys, pool = read_keys(dump, 0, 0, config), pool_of(root)
    tables = [
        pq.read_table(root / folder / "data.parquet") for folder in ("l00h00k", "attended/l00h00k")
    ]
    assert len(pool.keys) == sum(map(len, tables)) > len(keys) == len(tables[0])
    inclusion = np.concatenate([table["inclusion"].to_numpy() for table in tables])
    np.testing.assert_allclose(pool.keys.weight, 1 / inclusion, rtol=1e-6)
    vectors = np.concatenate([np.array(table["vector"].to_pylist()) for table in tables])
    np.testing.assert_array_equal(np.ldexp(pool.keys.rows.vectors, keys.exponent), vectors)
    received = np.concatenate([np.array(table["received"].to_pylist()) for table in tables])
    np.testing.assert_array_equal(pool.attention(2), received[:, 0])  # two heads per key head
    np.testing.assert_array_equal(pool.attention(1), received[:, 1])
    np.testing.assert_allclose(pool.of_group, received.sum(axis=1))
    weight = pool.pair_weight(pool.attention(0))
    assert (weight[pool.keys.position < 4] == 0).all()  # without tokens 0 to 3
    late = pool.keys.position >= 4
    np.testing.assert_allclose(weight[late], (received[:, 0] / inclusion)[late], rtol=1e-6)


@pytest.mark.parametrize("most", [60, 100, 10**6])
def test_weights_of_a_pool_count_all_tokens(tmp_path, most):
    """Also if `max_tokens_per_head` keeps a part of the base rows, or of both files."""
    texts, length, dumps = 4, 100, 60
    totals, attention = [], []
    for number in range(dumps):
        rng = np.random.default_rng(number)
        received = (
            np.random.default_rng(0).exponential(size=(texts, length)).astype(np.float32) / 100
        )
        by_attention = np.minimum(1.0, 30 * received)
        base = rng.random((texts, length)) < 0.25
        drawn = (rng.random((texts, length)) < by_attention) & ~base
        root = tmp_path / str(number)
        inclusion = joint_inclusion(np.full((texts, length), 0.25), by_attention)
        for kept, is_drawn in ((base, False), (drawn, True)):
            text, position = np.nonzero(kept)
            write_columns(
                root,
                HeadId(0, 0, "k", attended=is_drawn),
                bucket=position // 4,
                example_id=text,
                position=position,
                vectors=rng.standard_normal((len(text), 4)).astype(np.float32),
                received=received[kept][:, None],
                inclusion=inclusion[kept],
            )
        facts = {"sampler": {"type": "uniform", "base_rate": 1.0}, "bucket_type": "uniform"}
        facts |= {"min_bucket_size": 4, "num_q_heads": 1, "num_k_heads": 1}
        write_manifest(root, DumpManifest(**facts))
        pool = pool_of(root, max_tokens_per_head=most, seed=number, bin_size=16)
        weight = pool.keys.weight
        totals.append(weight.sum())
        attention.append(weight @ pool.attention(0))
        assert len(pool.keys) <= 2 * most
    for found, right in ((totals, texts * length), (attention, received.sum(dtype=float))):
        error = np.std(found) / math.sqrt(dumps)
        assert abs(np.mean(found) - right) < 3 * error < 0.1 * right


def test_without_a_sampler_a_part_of_the_rows_has_no_weights(tmp_path):
    root = make_attention_dump(tmp_path, received=True)
    assert pool_of(root) is not None
    assert pool_of(root, max_tokens_per_head=50) is None
    assert pool_of(root, single_example=True) is None


@pytest.mark.parametrize("damage", ["no folder", "null"])
def test_what_keys_receive_may_be_unknown(tmp_path, damage):
    root = make_attention_dump(tmp_path, share=0.5, received=True)
    if damage == "no folder":
        (root / "attended").rename(root / "elsewhere")
    else:
        for file in (root / "l00h00k", root / "attended" / "l00h00k"):
            table = pq.read_table(file / "data.parquet")
            place = table.column_names.index("received")
            null = pa.nulls(len(table), table.schema.field(place).type)
            table = table.set_column(place, table.schema.field(place), null)
            pq.write_table(table, file / "data.parquet")
    assert pool_of(root) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d": 5}, "attended/l00h00k: keys have 5 dimensions, those of l00h00k have 6"),
        ({"group": 3}, "`received` has 3 values per row, that of l00h00k has 1"),
        ({"examples": 9}, "attended/l00h00k: has rows of text [678], which is not one of the 6"),
    ],
)
def test_files_of_two_captures_are_refused(tmp_path, change, message):
    root = make_attention_dump(tmp_path, received=True)
    shape = {"d": 6, "group": 1, "examples": 6, "context": 48, "bucket_size": 8, **change}
    add_attended(root, n=40, **shape)
    dump, config = ap.open_dump(root), ap.make_config()
    keys = read_keys(dump, 0, 0, config, DumpTexts(np.arange(6)))  # the texts of a run
    with pytest.raises(ap.DumpError, match=message):
        read_pool(dump, 0, 0, keys, config)
