"""What of a run goes onto the page."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import (
    bin_influences,
    mean_half_width,
    mean_of_bins,
    mean_over_heads,
)
from helpers.plain_runs import edit_info
from helpers.report_runs import HEADS, LAYERS, MISSING, TEXT_GROUPS, write_baselines, write_run
from qk_toolkit.errors import ConfigError

FACTOR = t.ppf(0.975, TEXT_GROUPS - 1)
LEVEL, DROP = "ap_aligned", "ap_aligned_drop"


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


@pytest.fixture
def measured(tmp_path):
    return FinishedRun.open(write_run(tmp_path / "measured", position=True))


def test_selected_layers_have_their_own_counts_and_the_warnings_of_the_run(tmp_path):
    folder = write_run(tmp_path / "run", warnings=["Few texts."])
    edit_info(folder, not_captured=[list(MISSING)])
    run = FinishedRun.open(folder)
    for layers, missing, failed in (("0-2", 1, 0), ("0,4", 0, 1)):
        part = run.select(layers=layers)
        about, _ = run_content(part, "x")
        heads = len(part.head_metrics)
        assert about["selected"] == layers
        assert about["counts"] == {"shown": heads, "not_captured": missing, "failed": failed}
        assert about["warnings"] == ["whole run: Few texts."]
        assert about["grid"] == [LAYERS, HEADS]
    assert dict(about["provenance"][0][1])["layers of this page"] == "0, 4"
    about, _ = run_content(run.select(layers=f"0-{LAYERS - 1}"), "x")
    assert (about["selected"], about["warnings"]) == (None, ["Few texts."])


def test_provenance_is_all_there(run):
    about, _ = run_content(FinishedRun.open(run), "x")
    found = {name: dict(lines) for name, lines in about["provenance"]}
    assert found["Run"]["seed"] == "7"
    assert found["Run"]["finished"] == "2026-01-02T03:04:05+00:00"
    assert found["Run"]["heads"] == "29 analysed, 1 failed, 1 not captured, 0 not analysed"
    assert found["Model and dump"]["model"] == "owner/model-one"
    assert found["Model and dump"]["revision"] == "abc123"
    assert found["Model and dump"]["fingerprint"] == "f1f2f3"
    assert found["Model and dump"]["Hub commit"] == "c0ffee"
    assert found["Settings"] == {"query_model": "positional"}
    assert found["Versions"]["numpy"] == "2.4.6"
    assert found["Heads that failed"] == {"layer 4, head 9": "too few <queries>"}


def test_rows_come_sorted_and_none_twice(run):
    metrics = pd.read_csv(run / "head_metrics.csv")
    metrics.iloc[::-1].to_csv(run / "head_metrics.csv", index=False)
    _, tables = run_content(FinishedRun.open(run), "x")
    np.testing.assert_array_equal(tables["heads"]["ap_overall"], metrics["ap_overall"])
    pd.concat([metrics, metrics.tail(1)]).to_csv(run / "head_metrics.csv", index=False)
    with pytest.raises(ConfigError, match=r"holds two rows for layer 4, q_head 5"):
        run_content(FinishedRun.open(run), "x")


def test_means_and_profiles_of_each_type_of_layers(measured):
    about, tables = run_content(measured, "x")
    rows = [
        (kind["name"], kind["words"], kind["layers"], kind["heads"]) for kind in about["groups"][1:]
    ]
    assert rows == [
        ("full_attention", "full attention", "0,2-4", 23),
        ("sliding_attention", "sliding window", "1", 6),
    ]
    for kind in about["groups"][1:]:
        part = measured.select(layer_type=kind["name"])
        for name, mean in kind["means"].items():
            expected = mean_over_heads(part, name)
            half = mean_half_width(expected)
            assert mean == [expected.value, None if math.isnan(half) else half]
        assert set(kind["means"]) == set(about["groups"][0]["means"])
        rows = bin_influences(part)
        assert rows is not None
        errors = mean_of_bins(rows, part.eligible_heads)
        for name in ("plasticity", "half_width"):
            np.testing.assert_allclose(tables[kind["profile"]][name], errors[name])
    about, tables = run_content(FinishedRun(measured.folder, measured.info, frozenset({0, 2})), "x")
    assert [kind["heads"] for kind in about["groups"][1:]] == [11]
    assert about["groups"][1]["means"] == about["groups"][0]["means"]


def test_a_baseline_has_means_over_draws_and_no_profile_without_bins(tmp_path):
    folder = write_run(tmp_path / "run", position=True)
    for name, place in write_baselines(folder, draws=2).items():
        edit_info(place, sha256={})
        bins = pd.read_csv(place / "head_bin_plasticity.csv")
        kept = bins[bins["layer"] != 1] if "random" in name else bins
        kept.to_csv(place / "head_bin_plasticity.csv", index=False)
    run = FinishedRun.open(folder)
    about, tables = run_content(run, "x")
    groups = about["baselines"][0]["groups"]
    assert [group["profile"] in tables for group in groups] == [True, True, False]
    draws = run.baselines["random weights"]
    means = [mean_over_heads(draw, LEVEL).value for draw in draws]
    assert groups[0]["means"][LEVEL][0] == pytest.approx(np.mean(means))
    bins = pd.concat([draw.table("bins") for draw in draws])  # as many rows of every draw
    values = bins.groupby("q_bin")["plasticity"].mean()
    found = tables[groups[0]["profile"]]["plasticity"]
    first = bins["q_bin"].min()
    assert found[0] == pytest.approx(values[first])
