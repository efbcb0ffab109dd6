"""Profiles of heads and their mean, with the intervals that the page draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from attention_plasticity.metrics import BIN_QUANTITY, GROUP_COLUMNS
from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from report_runs import TEXT_GROUPS, write_run

FACTOR = t.ppf(0.975, TEXT_GROUPS - 1)


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return FinishedRun.open(write_run(tmp_path / "run", position=True))


def bins_of(run: FinishedRun) -> pd.DataFrame:
    assert run.influences is not None
    rows = run.influences[run.influences["quantity"] == BIN_QUANTITY]
    return rows.sort_values(["layer", "q_head", "bin"], ignore_index=True)


def test_profiles_of_bins_have_intervals(run: FinishedRun) -> None:
    tables, rows = run_content(run, "x")[1], bins_of(run)
    shares = rows[list(GROUP_COLUMNS)].to_numpy()  # (rows, groups)
    profiles, half = tables["profiles"], FACTOR * np.sqrt((shares**2).sum(axis=1))
    np.testing.assert_allclose(profiles["plasticity"], rows["value"], rtol=1e-6)
    np.testing.assert_allclose(profiles["half_width"], half, rtol=1e-6)
    np.testing.assert_allclose(profiles["half_widths_per_error"], FACTOR, rtol=1e-6)
    mean = tables["mean_0"]
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
    mean = pd.DataFrame(tables["mean_0"]).set_index("q_bucket")
    assert last not in mean.index
    later = bins_of(run).query("bin == @last - 1")
    assert set(later["layer"]) == {1, 2, 3, 4}
    assert mean.loc[last - 1, "plasticity"] == pytest.approx(later["value"].mean())
    assert np.isfinite(mean["half_width"]).all()
    profiles = pd.DataFrame(tables["profiles"]).set_index("q_bucket")
    assert profiles.loc[last, ["plasticity", "pooled", "half_width"]].isna().all(axis=None)
    assert profiles.loc[last, "n_texts"].notna().all()


def test_a_head_without_influences_leaves_the_mean_without_an_interval(run: FinishedRun) -> None:
    assert run.influences is not None
    first = (run.influences["layer"] == 0) & (run.influences["q_head"] == 0)
    vars(run)["influences"] = run.influences[~first]
    about, tables = run_content(run, "x")
    assert about["groups"][0]["means"] == {}
    assert np.isnan(tables["mean_0"]["half_width"]).all()
    of_first = (tables["profiles"]["layer"] == 0) & (tables["profiles"]["q_head"] == 0)
    np.testing.assert_array_equal(np.isnan(tables["profiles"]["half_width"]), of_first)
