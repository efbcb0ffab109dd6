"""Missing values in run.json: against the NaN of the tables."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_dumps import make_attention_dump
from attention_plasticity import ConfigError, Run, analyze_dump, open_run
from attention_plasticity.head.layer import NO_COLUMNS
from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import AVERAGED, HEAD_METRICS, HEAD_NUMBERS
from attention_plasticity.run.missing import NOT_RECORDED, MissingSums, heads_of
from dumps import add_rotary, head_rows, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.layout import HeadId
from qk_dump.writer import write_head


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Few texts: some fifths have no errors, and there are no attention columns."""
    folder = tmp_path_factory.mktemp("run")
    dump = make_dump(folder / "dump", layers=2, q_heads=4, k_heads=2, n=90, examples=5)
    return analyze_dump(add_rotary(dump, layers=2), output_dir=folder / "out")


def test_every_nan_of_the_table_of_heads_has_one_reason(run: Run) -> None:
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
    chosen = run.select(layers="1").missing
    assert set(chosen["layer"]) == {1}
    assert len(chosen) == sum(layer == 1 for layer, _, _ in expected)


def test_numbers_of_heads_and_values_agree_with_the_tables(run: Run) -> None:
    assert run.bins.isna().any(axis=None)
    tables = {
        "head_metrics": run.head_metrics,
        "bucket_plasticity": run.bucket_plasticity,
        "bins": run.bins,
    }
    sums: dict[tuple[str, str], int] = {}
    for record in run.info["missing"]:
        heads = list(heads_of(record["where"]))
        assert record["heads"] == len(heads) == len(set(heads))
        for column in record["columns"]:
            key = record["table"], column
            sums[key] = sums.get(key, 0) + record["values"]
    for kind, table in tables.items():
        empty = table.drop(columns=["sliding_window"], errors="ignore").isna().sum()
        expected = {str(name): int(number) for name, number in empty.items() if number}
        assert {name: n for (found, name), n in sums.items() if found == kind} == expected


def test_a_run_without_the_table_of_bins_has_no_missing_values_of_it(tmp_path: Path) -> None:
    """One key per text makes no pair: all values at one position are missing."""
    keys = head_rows(60)
    keys["example_id"] = np.arange(60)
    dump = add_rotary(make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1, n=60))
    write_head(dump, HeadId(0, 0, "k"), **keys)
    run = analyze_dump(dump, output_dir=tmp_path / "out")
    assert "bins" not in run.info["tables"]
    assert {record["table"] for record in run.info["missing"]} <= set(run.info["tables"])


def test_columns_with_one_reason_are_joined(run: Run) -> None:
    found = [record for record in run.info["missing"] if record["table"] == "head_metrics"]
    (record,) = [record for record in found if record["reason"] == NO_COLUMNS]
    assert record["heads"] == 8
    assert record["where"] == {"0": "0-3", "1": "0-3"}
    names = [name for name in HEAD_METRICS.names if name.startswith(("attn_", "ap_attended"))]
    assert set(record["columns"]) == {*names, "n_later_queries"}


def test_groups_of_a_mean_are_the_fewest_of_its_heads(tmp_path: Path) -> None:
    """Counted from the rows of the dump: groups of texts with queries in the buckets of a mean."""
    out = analyze_dump(make_attention_dump(tmp_path / "dump"), output_dir=tmp_path / "out")
    influences = out.influences
    assert influences is not None
    assert {"ap_overall", "attn_entropy", "ap_attended"} <= set(out.info["means"]) <= {*AVERAGED}
    for name, mean in out.info["means"].items():
        rows = influences[influences["quantity"] == name]
        assert mean["groups"] == rows["n_groups"].min()
        shares = rows[[f"group_{group:02d}" for group in range(16)]].to_numpy()
        assert (np.count_nonzero(shares, axis=1) <= rows["n_groups"]).all()
    texts = out.bucket_plasticity["n_texts"].max()
    assert out.info["means"]["ap_overall"]["groups"] == min(texts, 16)


def test_without_texts_the_groups_are_not_known(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1, n=300)
    out = analyze_dump(dump, output_dir=tmp_path / "out", error_bars=False)
    assert out.info["means"]["ap_overall"]["groups"] is None


def test_records_of_an_earlier_version_have_no_reasons() -> None:
    metrics = dict.fromkeys(HEAD_METRICS.names, 0.5) | {"ap_drop": math.nan}
    sums = MissingSums()
    sums.add(HeadResult(0, 3, 1, metrics, {}, {}, {}))
    (found,) = sums.found
    assert (found.columns, found.reason, found.where) == (["ap_drop"], NOT_RECORDED, {"0": "3"})


def test_a_run_of_an_earlier_version_has_no_missing_values(run: Run, tmp_path: Path) -> None:
    info = {name: value for name, value in run.info.items() if name != "missing"}
    earlier = edited(run, tmp_path, info)
    assert earlier.missing.empty
    assert list(earlier.missing.columns) == ["layer", "q_head", "column", "reason"]


@pytest.mark.parametrize("where", [{"0": "0-"}, {"zero": "0"}, {"0": "0-99999999999"}])
def test_an_edited_place_is_refused(run: Run, tmp_path: Path, where: dict[str, str]) -> None:
    records = [{**run.info["missing"][0], "where": where}]
    broken = edited(run, tmp_path, {**run.info, "missing": records})
    with pytest.raises(ConfigError, match=r"run\.json: missing: where: .*run the analysis again"):
        _ = broken.missing


def edited(run: Run, folder: Path, info: dict[str, object]) -> Run:
    (folder / "run.json").write_text(json.dumps(info))
    for name in run.info["tables"].values():
        (folder / name).write_bytes((run.folder / name).read_bytes())
    return open_run(folder)


def test_the_table_is_sorted_by_head(run: Run) -> None:
    heads = run.missing[["layer", "q_head"]]
    pd.testing.assert_frame_equal(heads, heads.sort_values(["layer", "q_head"], kind="stable"))
