"""Attended plasticity: its scale, and where it is not known.

`test_leave_one_out.py` compares its values with a slow reference, `test_counts.py` with counts.
"""

import math
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from attention_plasticity import make_config, open_dump
from attention_plasticity.measure.head import measure_group
from attention_plasticity.read.group import read_group
from attention_plasticity.read.layer import NO_COMMON_TEXT, SINGLE_EXAMPLE
from attention_plasticity.read.pool import NO_ATTENDED_KEYS, KeyPool
from head_pairs import analyze
from helpers.attention_dumps import Layer, make_attention_dump

COLUMNS = ("ap_attended", "ap_attended_se")


def write_dump(root, **facts):
    entry = Layer().entry(0) | {"rope": True, "rotary": {"frequencies": [1.0, 0.1]}} | facts
    manifest = {"layers": [entry]}
    return make_attention_dump(root, q_heads=2, share=0.5, received=True, manifest=manifest)


def test_scales_do_not_matter(tmp_path):
    """A power of two is exact; the values of `received` may have any unit."""
    dump, config = open_dump(write_dump(tmp_path)), make_config(bin_size=8)
    group = read_group(dump, 0, 0, [1], config)
    pool, queries = group.pool, group.queries[1]
    plain = measure_group(group).heads[0].metrics
    rows = pool.keys.rows.with_columns({"vector": 4 * pool.keys.rows.vectors})
    moved = KeyPool(replace(pool.keys, rows=rows), 0.25 * pool.received)
    twice = replace(queries, rows=queries.rows.with_columns({"vector": 2 * queries.rows.vectors}))
    scaled = measure_group(replace(group, pool=moved, queries={1: twice})).heads[0].metrics
    for name in COLUMNS:
        assert scaled[name] == pytest.approx(plain[name], rel=1e-6)


@pytest.mark.parametrize(
    ("facts", "attended", "settings", "reason"),
    [
        ({"rotary": None}, True, {}, "attention-plasticity add-rotary"),
        ({}, False, {}, NO_ATTENDED_KEYS),
        ({}, True, {"single_example": True}, SINGLE_EXAMPLE),
    ],
)
def test_what_is_missing_is_the_reason(tmp_path, facts, attended, settings, reason):
    root = write_dump(tmp_path, **facts)
    if not attended:
        shutil.rmtree(root / "attended")
    result = analyze(root, **settings)
    for name in COLUMNS:
        assert math.isnan(result.metrics[name])
        assert reason in result.missing["head_metrics"][name]


def test_texts_must_be_common(tmp_path):
    root = write_dump(tmp_path, rope=False)
    assert math.isfinite(analyze(root).metrics["ap_attended"])
    file = root / "l00h00q" / "data.parquet"
    table = pq.read_table(file)
    ids = np.asarray(table["example_id"]) + 1000
    pq.write_table(table.set_column(1, "example_id", [ids]), file)
    assert analyze(root).missing["head_metrics"]["ap_attended"] == NO_COMMON_TEXT
