"""Intervals, groups of texts and means over heads that the page gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from attention_plasticity.metrics import BIN_QUANTITY, GROUP_COLUMNS, HEAD_METRICS
from attention_plasticity.page.content import run_content
from attention_plasticity.page.payload import pack
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    mean_bucket_errors,
    mean_half_width,
    mean_over_heads,
    p_values,
)
from qk_toolkit.errors import ConfigError
from report_runs import TEXT_GROUPS, write_run

FACTOR = t.ppf(0.975, TEXT_GROUPS - 1)
LEVEL, DROP = "ap_aligned", "ap_aligned_drop"


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return FinishedRun.open(write_run(tmp_path / "run", position=True))


def with_error(run: FinishedRun) -> list[str]:
    """The columns of the table of heads whose errors are known."""
    known = run.head_metrics.dropna(axis="columns", how="all")
    return [name for name in HEAD_METRICS.with_error if f"{name}_se" in known]


def bins_of(run: FinishedRun) -> pd.DataFrame:
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == BIN_QUANTITY]
    return rows.sort_values(["layer", "q_head", "bin"], ignore_index=True)


def test_heads_have_intervals_and_groups(run: FinishedRun) -> None:
    tables = run_content(run, "x")[1]
    estimates, names = tables["estimates"], with_error(run)
    assert {LEVEL, DROP, "ap_phase"} <= set(names)
    for name in names:
        expected = FACTOR * run.head_metrics[f"{name}_se"]
        np.testing.assert_allclose(estimates[f"{name}_half_width"], expected, rtol=1e-6)
        assert set(estimates[f"{name}_groups"]) == {TEXT_GROUPS}
    assert len(estimates) == 2 * len(names) + 1
    differs = benjamini_hochberg(p_values(run.head_metrics, DROP, run.influences))
    np.testing.assert_array_equal(estimates[f"{DROP}_differs"], differs)
    kinds = {name: kind for name, kind, _ in pack(tables)[0]["estimates"]["columns"]}
    assert {kinds[f"{name}_half_width"] for name in names} == {"f4"}
    assert {kinds[f"{name}_groups"] for name in names} == {"u1"}


def test_a_value_of_fewer_groups_has_a_wider_interval(run: FinishedRun) -> None:
    assert run.influences is not None
    influences = run.influences.copy()
    first = (influences["layer"] == 0) & (influences["q_head"] == 0)
    influences.loc[first & (influences["quantity"] == DROP), "n_groups"] = 5
    vars(run)["influences"] = influences
    estimates = run_content(run, "x")[1]["estimates"]
    assert estimates[f"{DROP}_groups"][:2].tolist() == [5, TEXT_GROUPS]
    assert estimates[f"{LEVEL}_groups"][0] == TEXT_GROUPS
    wide = t.ppf(0.975, 4) * run.head_metrics[f"{DROP}_se"][0]
    assert estimates[f"{DROP}_half_width"][0] == pytest.approx(wide)


def test_the_table_of_heads_stays_as_it_was_written(run: FinishedRun) -> None:
    heads, metrics = run_content(run, "x")[1]["heads"], run.head_metrics
    assert list(heads) == [name for name in metrics if name != "layer_type"]
    for name, column in heads.items():
        np.testing.assert_array_equal(column, metrics[name])


def test_profiles_of_bins_have_intervals(run: FinishedRun) -> None:
    tables, rows = run_content(run, "x")[1], bins_of(run)
    shares = rows[list(GROUP_COLUMNS)].to_numpy()  # (rows, groups)
    profiles, half = tables["profiles"], FACTOR * np.sqrt((shares**2).sum(axis=1))
    np.testing.assert_allclose(profiles["plasticity"], rows["value"], rtol=1e-6)
    np.testing.assert_allclose(profiles["half_width"], half, rtol=1e-6)
    np.testing.assert_allclose(profiles["half_widths_per_error"], FACTOR, rtol=1e-6)
    mean = tables["mean"]
    for place, number in enumerate(mean["q_bucket"]):
        here = (rows["bin"] == number).to_numpy()
        error = np.sqrt((shares[here].mean(axis=0) ** 2).sum())
        assert mean["half_width"][place] == pytest.approx(FACTOR * error)
        assert mean["plasticity"][place] == pytest.approx(rows["value"][here].mean())
    assert not any(name.startswith("group_") for table in tables.values() for name in table)


def test_a_bin_without_a_value_takes_part_in_no_mean(run: FinishedRun) -> None:
    assert run.influences is not None
    last = run.table("bins")["q_bin"].max()
    values = ["plasticity", "plasticity_se", "pooled", "pooled_se"]
    bins, influences = run.table("bins").copy(), run.influences
    bins.loc[bins["q_bin"] == last, values] = np.nan
    bins.loc[(bins["q_bin"] == last - 1) & (bins["layer"] == 0), values] = np.nan
    gone = (influences["bin"] == last) | (
        (influences["bin"] == last - 1) & (influences["layer"] == 0)
    )
    vars(run)["_tables"]["bins"], vars(run)["influences"] = bins, influences[~gone]
    tables = run_content(run, "x")[1]
    mean = pd.DataFrame(tables["mean"]).set_index("q_bucket")
    assert last not in mean.index
    later = bins_of(run).query("bin == @last - 1")
    assert set(later["layer"]) == {1, 2, 3, 4}
    assert mean.loc[last - 1, "plasticity"] == pytest.approx(later["value"].mean())
    assert np.isfinite(mean["half_width"]).all()
    profiles = pd.DataFrame(tables["profiles"]).set_index("q_bucket")
    assert profiles.loc[last, ["plasticity", "pooled", "half_width"]].isna().all(axis=None)
    assert profiles.loc[last, "n_texts"].notna().all()


def test_profiles_of_buckets_have_no_intervals(tmp_path: Path) -> None:
    tables = run_content(FinishedRun.open(write_run(tmp_path / "run")), "x")[1]
    for name in ("profiles", "mean"):
        assert "half_width" not in tables[name]


def test_means_over_heads_have_intervals_of_averaged_influences(run: FinishedRun) -> None:
    means = run_content(run, "x")[0]["means"]
    assert {LEVEL, DROP, "ap_phase", "ap_pooled"} <= set(means)
    assert "ap_overall" not in means  # it has no error
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == DROP]
    shares = rows[list(GROUP_COLUMNS)].mean().to_numpy()  # (groups,)
    half = FACTOR * np.sqrt((shares**2).sum())
    assert means[DROP] == pytest.approx([rows["value"].mean(), half])


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
            assert mean == [expected.value, mean_half_width(expected)]
        assert set(kind["means"]) == set(about["means"])
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
