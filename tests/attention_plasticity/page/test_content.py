"""What of a run goes onto the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.page.content import run_content
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import (
    bucket_errors,
    mean_half_width,
    mean_of_buckets,
    mean_over_heads,
)
from attention_plasticity.tables.labels import labels_of
from qk_toolkit.errors import ConfigError
from report_runs import (
    BUCKETS,
    HEADS,
    LAYERS,
    MISSING,
    TEXT_GROUPS,
    WIDTH,
    write_baselines,
    write_run,
)
from role_runs import UNSURE_HEAD, add_roles

FACTOR = t.ppf(0.975, TEXT_GROUPS - 1)
LEVEL, DROP = "ap_aligned", "ap_aligned_drop"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def measured(tmp_path: Path) -> FinishedRun:
    return FinishedRun.open(write_run(tmp_path / "measured", position=True))


def content_of(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    return run_content(FinishedRun.open(folder), "x")


def test_metrics_are_exact_and_cells_are_rounded_to_singles(run: Path) -> None:
    _, tables = run_content(FinishedRun.open(run), "x")
    metrics = pd.read_csv(run / "head_metrics.csv")
    assert list(tables["heads"]) == list(metrics.columns)
    for name, column in tables["heads"].items():
        np.testing.assert_array_equal(column, metrics[name])
    cells = pd.read_csv(run / "head_bucket_plasticity.csv")
    assert set(tables["profiles"]["n_texts"]) == {6}
    np.testing.assert_array_equal(
        tables["cells"]["plasticity"], cells["plasticity"].astype(np.float32)
    )
    np.testing.assert_array_equal(tables["cells"]["n_pairs"], cells["n_pairs"])
    weights = pd.read_csv(run / "head_component_weights.csv")
    np.testing.assert_allclose(tables["components"]["weight"], weights["weight"], rtol=1.3e-4)


def test_the_description_has_grid_counts_and_buckets(run: Path) -> None:
    about, tables = run_content(FinishedRun.open(run), "x")
    assert about["grid"] == [LAYERS, HEADS]
    assert (about["key_heads"], about["head_dims"]["4"], about["selected"]) == (2, WIDTH, None)
    assert about["counts"] == {"shown": LAYERS * HEADS - 1, "not_captured": 1, "failed": 1}
    assert (about["unit"], about["log"]) == ("tokens", False)
    assert tables["places"]["start"].tolist() == [128.0 * b for b in range(BUCKETS)]
    assert tables["places"]["end"].tolist() == [128.0 * b + 127 for b in range(BUCKETS)]


def test_warnings_are_the_sentences_of_run_json(tmp_path: Path) -> None:
    assert run_content(FinishedRun.open(write_run(tmp_path / "a")), "x")[0]["warnings"] == []
    run = FinishedRun.open(write_run(tmp_path / "b", warnings=["Few texts.", "Few queries."]))
    assert run_content(run, "x")[0]["warnings"] == ["Few texts.", "Few queries."]


def test_selected_layers_have_their_own_counts_and_the_warnings_of_the_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", warnings=["Few texts."])
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(info | {"not_captured": [list(MISSING)]}))
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


@pytest.mark.parametrize("claimed", [(10**9, 6), (5, 10**9), (1000, 4096)])
def test_a_grid_that_no_model_has_is_that_of_the_table(run: Path, claimed: tuple[int, int]) -> None:
    info = json.loads((run / "run.json").read_text())
    info["head_layout"] |= dict(zip(("num_layers", "num_q_heads"), claimed, strict=True))
    (run / "run.json").write_text(json.dumps(info))
    assert run_content(FinishedRun.open(run), "x")[0]["grid"] == [LAYERS, HEADS]


def test_provenance_is_all_there(run: Path) -> None:
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


def test_tables_of_the_original_tool_are_shown_as_far_as_they_go(run: Path) -> None:
    (run / "run.json").unlink()
    (run / "head_component_weights.csv").unlink()
    metrics = pd.read_csv(run / "head_metrics.csv")
    metrics[["layer", "q_head", "ap_overall"]].to_csv(run / "head_metrics.csv", index=False)
    cells = pd.read_csv(run / "head_bucket_plasticity.csv")
    old = cells[["layer", "q_head", "q_bucket", "k_bucket"]].assign(ap_bucket=cells["plasticity"])
    old.to_csv(run / "head_bucket_plasticity.csv", index=False)
    about, tables = run_content(FinishedRun.open(run), "x")
    assert "components" not in tables
    assert about["unit"] == "bucket"
    assert about["model"] == "run"
    assert about["grid"] == [LAYERS, HEADS]
    assert (about["key_heads"], about["head_dims"]) == (None, {})
    assert dict(about["provenance"][0][1])["run.json"] == "missing"
    assert about["why_over_buckets"] == "the tables of this run do not have it"


def test_without_a_geometry_mean_positions_stand_for_buckets(run: Path) -> None:
    info = json.loads((run / "run.json").read_text())
    del info["input"]["dump"]["min_bucket_size"]
    (run / "run.json").write_text(json.dumps(info))
    about, tables = run_content(FinishedRun.open(run), "x")
    assert about["unit"] == "tokens"
    assert tables["places"]["start"].tolist() == [
        *(128 * b + 64.125 for b in range(BUCKETS - 1)),
        128 * (BUCKETS - 1) + 63.25,
    ]
    assert "end" not in tables["places"]


def test_a_head_with_cells_alone_gets_empty_metrics(run: Path) -> None:
    metrics = pd.read_csv(run / "head_metrics.csv")
    metrics.iloc[:-1].to_csv(run / "head_metrics.csv", index=False)
    _, tables = run_content(FinishedRun.open(run), "x")
    assert len(tables["heads"]["layer"]) == len(metrics)
    assert np.isnan(tables["heads"]["ap_overall"][-1])
    assert MISSING not in set(zip(tables["heads"]["layer"], tables["heads"]["q_head"], strict=True))


def test_rows_come_sorted_and_none_twice(run: Path) -> None:
    metrics = pd.read_csv(run / "head_metrics.csv")
    metrics.iloc[::-1].to_csv(run / "head_metrics.csv", index=False)
    _, tables = run_content(FinishedRun.open(run), "x")
    np.testing.assert_array_equal(tables["heads"]["ap_overall"], metrics["ap_overall"])
    pd.concat([metrics, metrics.tail(1)]).to_csv(run / "head_metrics.csv", index=False)
    with pytest.raises(ConfigError, match=r"holds two rows for layer 4, q_head 5"):
        run_content(FinishedRun.open(run), "x")


def test_labels_tell_runs_of_one_model_apart(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c/a")]
    runs = [FinishedRun.open(write_run(folder)) for folder in folders]
    runs.append(FinishedRun.open(write_run(tmp_path / "d", model="other")))
    places = (f"{tmp_path.name}/a", f"{tmp_path.name}/b", "c/a")
    assert labels_of(runs) == [*(f"model-one ({place})" for place in places), "other"]


def test_means_over_heads_have_intervals_of_averaged_influences(measured: FinishedRun) -> None:
    means = run_content(measured, "x")[0]["groups"][0]["means"]
    assert {LEVEL, DROP, "ap_phase", "ap_pooled"} <= set(means)
    assert "ap_overall" not in means  # it has no error
    assert measured.influences is not None
    rows = measured.influences[measured.influences["quantity"] == DROP]
    shares = rows[list(GROUP_COLUMNS)].mean().to_numpy()  # (groups,)
    half = FACTOR * np.sqrt((shares**2).sum())
    assert means[DROP] == pytest.approx([rows["value"].mean(), half])


def test_means_and_profiles_of_each_type_of_layers(measured: FinishedRun) -> None:
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
            assert mean == [expected.value, mean_half_width(expected)]
        assert set(kind["means"]) == set(about["groups"][0]["means"])
        rows = bucket_errors(part)
        assert rows is not None
        errors = mean_of_buckets(rows, part.eligible_heads)
        for name in ("plasticity", "half_width"):
            np.testing.assert_allclose(tables[kind["profile"]][name], errors[name])
    about, tables = run_content(FinishedRun(measured.folder, measured.info, frozenset({0, 2})), "x")
    assert [kind["heads"] for kind in about["groups"][1:]] == [11]
    assert about["groups"][1]["means"] == about["groups"][0]["means"]


def test_thresholds_of_the_run_are_those_of_the_page(run: Path) -> None:
    info = json.loads((add_roles(run) / "run.json").read_text())
    info["config"]["role_thresholds"] = {"previous": 0.7, "repeated_induction": 0.9}
    (run / "run.json").write_text(json.dumps(info))
    thresholds = run_content(FinishedRun.open(run), "x")[0]["thresholds"]
    assert thresholds["previous_mass"] == 0.7
    assert thresholds["repeated_induction"] == 0.9
    assert thresholds["induction_excess"] == 0.2


def test_every_head_has_a_sentence_with_its_numbers(tmp_path: Path) -> None:
    folder = add_roles(write_run(tmp_path / "run", position=True))
    roles = pd.DataFrame(run_content(FinishedRun.open(folder), "x")[1]["roles"])
    roles = roles.set_index(["layer", "q_head"])
    metrics = pd.read_csv(folder / "head_metrics.csv").set_index(["layer", "q_head"])
    share, half = roles.loc[(0, 2), "previous_mass"], 100 * 0.002 * FACTOR
    start = f"Previous-token head. It puts {100 * share:.1f} ± {half:.1f} % of its attention"
    text = roles.loc[(0, 2), "sentence"]
    assert text.startswith(start)
    assert f"plasticity at one position {metrics.loc[(0, 2), 'ap_aligned']:.2f} ± " in text
    assert roles.loc[UNSURE_HEAD, "sentence"].startswith("Unsure, likely a previous-token head")


def test_repeated_tokens_decide_about_unsure_resting_heads(run: Path) -> None:
    _, tables = content_of(add_roles(run, scores={"role": "unsure"}))
    assert not tables["roles"]["repeated_decide"].any()
    _, tables = content_of(add_roles(run, scores={"role": "unsure", "repeated_induction": np.nan}))
    resting = pd.read_csv(run / "head_roles.csv")["likely_role"].isin(["far", "sink", "mixed"])
    assert tables["roles"]["repeated_decide"].tolist() == resting.tolist()


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        ({"tokens": False}, "the capture left out tokens (capture.tokens: false)"),
        ({"tokens": True}, "the dump has no tokens"),
        (None, "the dump has no tokens"),
    ],
)
def test_a_run_without_words_says_why(
    run: Path, capture: dict[str, Any] | None, reason: str
) -> None:
    about, tables = content_of(add_roles(run, words=False, capture=capture))
    assert "words" not in tables
    assert about["why_no_words"] == reason


def test_a_baseline_has_the_mean_over_its_draws(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", position=True)
    write_baselines(folder, draws=2)
    run = FinishedRun.open(folder)
    about, tables = run_content(run, "x")
    first = about["baselines"][0]
    draws = run.baselines["random weights"]
    assert (first["words"], first["draws"]) == ("random weights", 2)
    means = [mean_over_heads(draw, LEVEL).value for draw in draws]
    assert first["groups"][0]["means"][LEVEL][0] == pytest.approx(np.mean(means))
    own = [run_content(draw, "x")[1]["mean_0"]["plasticity"] for draw in draws]
    drawn = tables[first["groups"][0]["profile"]]["plasticity"]
    np.testing.assert_allclose(drawn, np.mean(own, axis=0))


def test_a_baseline_without_bins_of_a_type_of_layers_has_no_profile_of_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", position=True)
    for name, place in write_baselines(folder, draws=2).items():
        info = json.loads((place / "run.json").read_text())
        info.pop("sha256", None)
        (place / "run.json").write_text(json.dumps(info))
        table = pd.read_csv(place / "head_metrics.csv")
        table["layer_type"] = np.where(table["layer"] == 0, "sliding_attention", "full_attention")
        table.to_csv(place / "head_metrics.csv", index=False)
        bins = pd.read_csv(place / "head_bin_plasticity.csv")
        kept = bins[bins["layer"] > 0] if "random" in name else bins
        kept.to_csv(place / "head_bin_plasticity.csv", index=False)
    about, tables = run_content(FinishedRun.open(folder), "x")
    groups = about["baselines"][0]["groups"]
    assert [group["profile"] in tables for group in groups] == [True, False, True]
