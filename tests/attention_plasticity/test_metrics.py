"""The table of metrics: complete, without contradictions, and the source of names elsewhere."""

from __future__ import annotations

import math

import pytest

from attention_plasticity.head.result import HeadResult
from attention_plasticity.metrics import (
    ALIGNED_FIFTHS,
    ATTENTION_MEANS,
    AVERAGED,
    FIDELITY,
    HEAD_METRICS,
    MEAN_COLUMNS,
    METRIC_GROUPS,
    METRICS,
    TABLES,
    WITH_ERROR,
    Metric,
    shown_groups,
)
from attention_plasticity.page.html import page_html
from attention_plasticity.run.outputs import output_paths
from attention_plasticity.tables.csv_tables import FILE_NAMES


@pytest.mark.parametrize("kind", TABLES)
def test_columns_have_words_and_known_groups(kind: str) -> None:
    table = TABLES[kind]  # type: ignore[index]
    assert table.rows
    ids = ("layer", "k_head") if kind == "key_heads" else ("layer", "q_head", "k_head")
    assert table.names[: len(ids)] == ids
    for metric in table.columns:
        assert metric.label, metric
        assert metric.meaning, metric
        assert not metric.meaning.endswith("."), metric
        assert metric.group in ("", *METRIC_GROUPS), metric
        assert metric.error_of is None or metric.error_of in table.names, metric
        for error in metric.errors:
            assert error.column in table.names, metric


def test_errors_and_biases_belong_to_their_metric() -> None:
    assert tuple(name for name in METRICS if f"{name}_se" in METRICS) == WITH_ERROR
    for name in METRICS:
        for ending in ("_se", "_bias", "_corrected"):
            if name.endswith(ending):
                assert METRICS[name].error_of == name.removesuffix(ending)
                assert METRICS[name].optional
    biased = [name for name, metric in METRICS.items() if metric.bias]
    assert {"ap_overall", "ap_drop", "ap_attended"} <= set(biased)
    for ending in ("_bias", "_corrected"):
        assert [name for name in METRICS if f"{name}{ending}" in METRICS] == biased
    assert {*MEAN_COLUMNS, *ATTENTION_MEANS} <= set(AVERAGED) <= set(WITH_ERROR)


def test_the_page_shows_every_metric_once_and_in_reading_order() -> None:
    groups = dict(shown_groups())
    shown = [name for names in groups.values() for name in names]
    assert sorted(shown) == sorted(name for name, metric in METRICS.items() if metric.group)
    plasticity = groups["Plasticity"]
    assert plasticity[:4] == ["ap_aligned", "ap_aligned_drop", "ap_phase", "ap_pooled"]
    assert plasticity[4:9] == list(ALIGNED_FIFTHS)
    assert plasticity[10:14] == ["ap_overall", "ap_drop", "ap_first20", "ap_20to40"]
    assert groups["Position in the queries"][0] == "q_R2_total"
    html = page_html("title", [])
    for name in shown:
        assert f'"{name}":{{"label":' in html


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("ap_overall", 0.68749, "0.687"),
        ("ap_drop", -0.0001, "0.000"),
        ("ap_overall_se", 0.00349, "0.0035"),
        ("n_q_tokens", 12345, "12,345"),
        ("layer", 7, "7"),
        ("q_R2_total", math.nan, "–"),
        ("q_beta_norm", 0.00004, "4.0e-05"),
    ],
)
def test_values_have_the_decimals_of_their_format(column: str, value: float, text: str) -> None:
    assert METRICS[column].show(value) == text


def test_nan_is_missing_unless_it_has_a_meaning() -> None:
    assert METRICS["ap_overall"].is_missing(math.nan)
    assert not METRICS["ap_overall"].is_missing(0.5)
    assert not METRICS["sliding_window"].is_missing(math.nan)
    assert not METRICS["layer_type"].is_missing("full_attention")


def test_tables_have_their_default_names_in_every_place() -> None:
    names = {kind: table.file for kind, table in TABLES.items()}
    assert names | {"fidelity": FIDELITY.file} == FILE_NAMES  # which another verb writes
    from attention_plasticity.config import make_config

    paths = output_paths(make_config(pair_sampling="context"), "dump").tables
    assert {kind: path.name for kind, path in paths.items()} == names


def test_fields_of_a_head_result_hold_the_other_tables() -> None:
    result = HeadResult(0, 0, 0, {}, {}, {}, {})
    for kind in ("buckets", "components", "influences", "distances", "attention"):
        assert getattr(result, kind) == {}


def test_a_metric_with_errors_brings_its_columns() -> None:
    metric = Metric("x", "size", "a size", unit="tokens", error=True, bias=True)
    assert [error.column for error in metric.errors] == ["x_se", "x_bias", "x_corrected"]
    assert {error.unit for error in metric.errors} == {"tokens"}
    assert [error.label for error in metric.errors] == [
        "error of size",
        "bias of size",
        "corrected size",
    ]
    assert Metric("y", "y", "y").errors == ()
    assert HEAD_METRICS.names.index("ap_counted_se") == HEAD_METRICS.names.index("ap_counted") + 1
