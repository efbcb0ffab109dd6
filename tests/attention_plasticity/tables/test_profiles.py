"""Profiles over the context against plain loops over the tables of a run."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

import attention_plasticity as ap
from attention_plasticity.metrics import ALIGNED, GROUP_COLUMNS, NEAR, POOLED
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    main_plasticity,
)
from attention_plasticity.tables.profiles import over_draws, profiles_of, shown_cells
from helpers.report_runs import TEXT_GROUPS, write_baselines, write_run

FACTOR = t.ppf(0.975, TEXT_GROUPS - 1)
QUANTITIES = {ALIGNED: "ap_bin", POOLED: "ap_bin_pooled", NEAR: "ap_bin_near"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("runs") / "run", position=True)
    write_baselines(folder, draws=3)
    return ap.open_run(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return ap.open_run(write_run(tmp_path_factory.mktemp("runs") / "plain"))


def known_profiles(run, column):
    found = profiles_of(run, column)
    assert found is not None
    return found


@pytest.mark.parametrize("column", QUANTITIES)
def test_profiles_have_the_values_and_errors_of_the_influences(run, column):
    profiles = known_profiles(run, column)
    rows = run.table("influences").query("quantity == @QUANTITIES[@column]")
    seen = 0
    for row in rows.to_dict("records"):
        head = profiles.heads.index((row["layer"], row["q_head"]))
        place = profiles.buckets.tolist().index(int(row["bin"]))
        assert profiles.values[head, place] == row["value"]
        error = math.sqrt(sum(row[name] ** 2 for name in GROUP_COLUMNS))
        assert profiles.half[head, place] == pytest.approx(FACTOR * error)
        seen += 1
    assert np.isfinite(profiles.values).sum() == seen
    for number, mean, half in zip(
        profiles.known.buckets, profiles.known.mean, profiles.known.mean_half, strict=True
    ):
        own = rows[rows["bin"] == number]
        assert mean == pytest.approx(sum(own["value"]) / len(own))
        shares = [sum(own[name]) / len(own) for name in GROUP_COLUMNS]
        assert half == pytest.approx(FACTOR * math.sqrt(sum(one**2 for one in shares)))


def test_without_influences_the_cells_of_a_bucket_count_by_their_pairs(plain):
    profiles = known_profiles(plain, OVER_BUCKETS.level)
    sums = {}
    for row in plain.bucket_plasticity.dropna(subset=["plasticity"]).to_dict("records"):
        total = sums.setdefault((row["layer"], row["q_head"], row["q_bucket"]), [0.0, 0.0])
        total[0] += row["n_pairs"] * row["plasticity"]
        total[1] += row["n_pairs"]
    for (layer, head, bucket), (total, number) in sums.items():
        place = profiles.heads.index((layer, head)), profiles.buckets.tolist().index(bucket)
        assert profiles.values[place] == pytest.approx(total / number)
    assert np.isnan(profiles.half).all()
    assert np.isnan(profiles.mean_half).all()
    assert profiles_of(plain, ALIGNED) is None
    assert main_plasticity(plain) is OVER_BUCKETS


def test_a_head_in_a_part_of_the_context_is_the_mean_over_its_bins(run):
    profiles = known_profiles(run, ALIGNED)
    inside = (profiles.buckets >= 3) & (profiles.buckets < 6)
    column = profiles.over(inside)
    rows = run.table("influences").query("quantity == 'ap_bin' and 3 <= bin < 6")
    for (layer, head), own in rows.groupby(["layer", "q_head"]):
        place = column.heads.index((int(layer), int(head)))
        assert column.values[place] == pytest.approx(own["value"].mean())
        np.testing.assert_allclose(column.influences[place], own[list(GROUP_COLUMNS)].mean())
        assert column.groups[place] == TEXT_GROUPS


def test_layers_are_selected_and_empty_bins_take_part_in_no_mean(tmp_path):
    run = ap.open_run(write_run(tmp_path / "run", position=True))
    last = run.table("bins")["q_bin"].max()
    gone = (run.influences["bin"] == last) & (run.influences["layer"] > 0)
    vars(run)["influences"] = run.influences[~gone]
    bins = run.table("bins").copy()
    bins.loc[(bins["q_bin"] == last) & (bins["layer"] > 0), "plasticity"] = np.nan
    vars(run)["_tables"]["bins"] = bins
    profiles = known_profiles(run, ALIGNED)
    assert last in profiles.known.buckets
    part = profiles.of_layers([1, 2], None)
    assert {layer for layer, _ in part.heads} == {1, 2}
    assert last in part.buckets
    assert last not in part.known.buckets
    assert len(profiles.over(profiles.buckets == last).heads) == 6  # those of layer 0


def test_a_mean_over_draws_has_the_error_between_draws(run):
    draws = [known_profiles(draw, ALIGNED) for draw in run.baselines["random weights"]]
    found = over_draws(draws)
    means = np.array([draw.mean for draw in draws])  # (draws, bins)
    np.testing.assert_allclose([one.value for one in found], means.mean(axis=0))
    between = means.std(axis=0, ddof=1) / math.sqrt(len(draws))
    texts = np.array([[mean.standard_error for mean in draw.means] for draw in draws])
    expected = np.sqrt(between**2 + (texts**2).mean(axis=0))
    np.testing.assert_allclose([one.standard_error for one in found], expected)
    [one] = {level.draws for level in over_draws(draws[:1])[:1]}
    assert len(one) == 1
    np.testing.assert_allclose([one.half for one in over_draws(draws[:1])], draws[0].mean_half)


def test_cells_are_those_of_the_plasticity_that_is_shown(run, plain):
    for of, wanted, shown in (
        (run, None, AT_ONE_POSITION),
        (run, "bucket", OVER_BUCKETS),
        (plain, None, OVER_BUCKETS),
    ):
        cells, found = shown_cells(of, wanted)
        assert found is shown
        kind = "bins" if shown is AT_ONE_POSITION else "bucket_plasticity"
        pd.testing.assert_series_equal(cells["plasticity"], of.table(kind)["plasticity"])
    assert main_plasticity(run, plain) is OVER_BUCKETS
    assert main_plasticity(run, run) is AT_ONE_POSITION
    assert main_plasticity() is OVER_BUCKETS
