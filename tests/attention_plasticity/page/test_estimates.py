"""Corrected values, intervals and marks that the page gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from attention_plasticity.metrics import GROUP_COLUMNS, MEAN_COLUMNS
from attention_plasticity.page.content import run_content
from attention_plasticity.page.payload import pack
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import mean_bucket_errors, mean_over_heads
from qk_toolkit.errors import ConfigError
from report_runs import GAPS, TEXT_GROUPS, write_run

FACTOR = t.ppf(0.975, TEXT_GROUPS - 1)


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return FinishedRun.open(write_run(tmp_path / "run", errors=True))


def test_heads_have_intervals_and_marks(run: FinishedRun) -> None:
    tables = run_content(run, "x")[1]
    estimates, metrics = tables["estimates"], run.head_metrics
    for name in MEAN_COLUMNS:
        half = estimates[f"{name}_half_width"]
        np.testing.assert_allclose(half, FACTOR * metrics[f"{name}_se"], rtol=1e-6)
    assert not set(MEAN_COLUMNS) & set(estimates)  # the page subtracts the bias
    assert {"ap_counted_half_width", "ap_gaussian_gap_half_width"} <= set(estimates)
    heads = list(zip(metrics["layer"], metrics["q_head"], strict=True))
    assert estimates["gap_is_large"].tolist() == [head in GAPS for head in heads]
    header, _ = pack(tables)
    kinds = {name: kind for name, kind, _ in header["estimates"]["columns"]}
    assert kinds.pop("gap_is_large") == "u1"
    assert set(kinds.values()) == {"f4"}


def test_the_table_of_heads_stays_as_it_was_written(run: FinishedRun) -> None:
    about, tables = run_content(run, "x")
    heads, metrics = tables["heads"], run.head_metrics
    for name, column in heads.items():
        np.testing.assert_array_equal(column, metrics[name])
    assert [*about["head_columns"], "layer_type"] == list(metrics)
    computed = set(about["head_columns"]) - set(heads)
    assert {f"{name}_corrected" for name in MEAN_COLUMNS} <= computed
    for name in computed:
        value = name.removesuffix("_corrected")
        expected = metrics[value] - metrics[f"{value}_bias"]
        np.testing.assert_allclose(metrics[name], expected, rtol=1e-12)


def test_corrected_values_that_are_not_value_minus_bias_are_stored(run: FinishedRun) -> None:
    metrics = run.head_metrics.copy()
    metrics.loc[2, "ap_drop_corrected"] += 1e-6
    vars(run)["head_metrics"] = metrics
    heads = run_content(run, "x")[1]["heads"]
    assert [name for name in heads if name.endswith("_corrected")] == ["ap_drop_corrected"]


def test_profiles_have_corrected_values_and_intervals(run: FinishedRun) -> None:
    tables = run_content(run, "x")[1]
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == "ap_bucket"]
    shares = rows[list(GROUP_COLUMNS)].to_numpy()  # (rows, groups)
    profiles = tables["profiles"]
    np.testing.assert_allclose(profiles["plasticity"], rows["value"] - rows["bias"], rtol=1e-6)
    error = np.sqrt((shares**2).sum(axis=1))
    np.testing.assert_allclose(profiles["half_width"], FACTOR * error, rtol=1e-6)
    mean = tables["mean"]
    for place, bucket in enumerate(mean["q_bucket"]):
        here = (rows["q_bucket"] == bucket).to_numpy() & rows["value"].notna().to_numpy()
        error = np.sqrt((shares[here].mean(axis=0) ** 2).sum())
        assert mean["half_width"][place] == pytest.approx(FACTOR * error)
        values = (rows["value"] - rows["bias"])[here]
        assert mean["plasticity"][place] == pytest.approx(values.mean())
    assert not any(name.startswith("group_") for table in tables.values() for name in table)


def test_means_over_heads_have_errors_of_averaged_influences(run: FinishedRun) -> None:
    means = run_content(run, "x")[0]["means"]
    assert set(means) == set(MEAN_COLUMNS)
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == "ap_drop"]
    shares = rows[list(GROUP_COLUMNS)].mean().to_numpy()  # (groups,)
    value = (rows["value"] - rows["bias"]).mean()
    assert means["ap_drop"] == pytest.approx([value, np.sqrt((shares**2).sum())])


def test_means_and_profiles_of_each_type_of_layers(run: FinishedRun) -> None:
    about, tables = run_content(run, "x")
    rows = [(kind["name"], kind["words"], kind["layers"], kind["heads"]) for kind in about["types"]]
    assert rows == [
        ("full_attention", "full attention", "0,2-4", 23),
        ("sliding_attention", "sliding window", "1", 6),
    ]
    for number, kind in enumerate(about["types"]):
        part = run.select(layer_type=kind["name"])
        for name, mean in kind["means"].items():
            expected = mean_over_heads(part, name)
            assert mean == [expected.value, expected.standard_error]
        assert set(kind["means"]) == set(MEAN_COLUMNS)
        errors = mean_bucket_errors(part)
        assert errors is not None
        for name in ("plasticity", "half_width"):
            np.testing.assert_allclose(tables[f"mean_{number}"][name], errors[name])
    about, tables = run_content(FinishedRun(run.folder, run.info, frozenset({0, 2})), "x")
    assert [kind["heads"] for kind in about["types"]] == [11]
    assert not any(name.startswith("mean_") for name in tables)


def test_a_run_without_errors_has_no_estimates(tmp_path: Path) -> None:
    about, tables = run_content(FinishedRun.open(write_run(tmp_path / "run")), "x")
    assert about["means"] == {}
    assert "estimates" not in tables
    assert not {"half_width"} & (set(tables["profiles"]) | set(tables["mean"]))


def test_a_head_without_influences_leaves_the_mean_without_an_interval(run: FinishedRun) -> None:
    assert run.influences is not None
    first = (run.influences["layer"] == 0) & (run.influences["q_head"] == 0)
    vars(run)["influences"] = run.influences[~first]
    about, tables = run_content(run, "x")
    assert about["means"] == {}
    assert np.isnan(tables["mean"]["half_width"]).all()
    of_first = (tables["profiles"]["layer"] == 0) & (tables["profiles"]["q_head"] == 0)
    np.testing.assert_array_equal(np.isnan(tables["profiles"]["half_width"]), of_first)


def test_two_rows_of_one_influence_are_refused(run: FinishedRun) -> None:
    assert run.influences is not None
    vars(run)["influences"] = pd.concat([run.influences, run.influences.tail(1)])
    with pytest.raises(ConfigError, match=r"head_influences\.csv: holds two rows for layer 4"):
        run_content(run, "x")
