"""Missing values in run.json: against the NaN of the tables."""

import math

import pandas as pd
import pytest

from attention_plasticity import open_run
from attention_plasticity.metrics import HEAD_NUMBERS
from attention_plasticity.read.layer import NO_COLUMNS
from attention_plasticity.tables.missing import heads_of
from dumps import add_rotary, make_dump
from runs_here import analyse


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Few texts: some fifths have no errors, and there are no attention columns."""
    folder = tmp_path_factory.mktemp("run")
    dump = make_dump(folder / "dump", layers=2, q_heads=4, k_heads=2, n=90, examples=5)
    return run_of(add_rotary(dump, layers=2), folder / "out")


def run_of(dump, out, **fields):
    analyse(dump, out, **fields)
    return open_run(out)


def test_every_nan_of_the_table_of_heads_has_one_reason(run):
    table = run.head_metrics
    expected = {
        (row["layer"], row["q_head"], name)
        for row in table.to_dict("records")
        for name in HEAD_NUMBERS
        if math.isnan(row[name]) and name != "sliding_window"
    }
    found = [tuple(row) for row in run.missing[["layer", "q_head", "column"]].to_numpy()]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert run.missing["reason"].str.len().gt(0).all()
    assert set(run.missing.query("column == 'attn_entropy'")["reason"]) == {NO_COLUMNS}
    heads = run.missing[["layer", "q_head"]]
    pd.testing.assert_frame_equal(heads, heads.sort_values(["layer", "q_head"], kind="stable"))
    chosen = run.select(layers="1").missing
    assert set(chosen["layer"]) == {1}
    assert len(chosen) == sum(layer == 1 for layer, _, _ in expected)


def test_numbers_of_heads_agree_with_the_tables(run):
    tables = {"head_metrics": run.head_metrics, "drift": run.table("drift")}
    tables["key_heads"] = run.table("key_heads")
    sums = {}
    for record in run.info["missing"]:
        heads = list(heads_of(record["where"]))
        assert record["heads"] == len(heads) == len(set(heads))
        for column in record["columns"]:
            key = record["table"], column
            sums[key] = sums.get(key, 0) + len(heads)
    assert {table for table, _ in sums} <= set(tables)
    for kind, table in tables.items():
        empty = table.drop(columns=["sliding_window"], errors="ignore").isna().sum()
        expected = {str(name): int(number) for name, number in empty.items() if number}
        assert {name: n for (found, name), n in sums.items() if found == kind} == expected
