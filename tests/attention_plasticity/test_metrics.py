"""The table of metrics: complete, without contradictions, and the source of names elsewhere."""

import math

import pytest

from attention_plasticity.metric import METRIC_GROUPS
from attention_plasticity.metrics import METRICS, TABLES, shown_groups
from attention_plasticity.page.html import page_html


@pytest.mark.parametrize("kind", TABLES)
def test_columns_have_words_and_known_groups(kind):
    table = TABLES[kind]
    assert table.rows
    ids = ("layer", "k_head") if kind == "key_heads" else ("layer", "q_head", "k_head")
    assert table.names[: len(ids)] == ids
    for metric in table.columns:
        assert metric.label, metric
        assert metric.meaning, metric
        assert not metric.meaning.endswith("."), metric
        assert metric.group in ("", *METRIC_GROUPS), metric
        assert metric.error_of is None or metric.error_of in table.names, metric
        assert not metric.error or metric.standard_error.column in table.names, metric


def test_the_page_shows_every_metric_once_and_in_reading_order():
    groups = dict(shown_groups())
    shown = [name for names in groups.values() for name in names]
    assert sorted(shown) == sorted(name for name, metric in METRICS.items() if metric.group)
    plasticity = groups["Plasticity"]
    parts = ["ap_aligned_drop", "ap_aligned_drop_position", "ap_aligned_drop_distance"]
    assert plasticity[:6] == ["ap_aligned", *parts, "ap_aligned_first20", "ap_aligned_last20"]
    assert plasticity[6:] == [
        *("ap_aligned_counted", "ap_phase", "ap_pooled", "ap_overall", "ap_attended"),
    ]
    assert groups["Position in the queries"][0] == "q_R2_total"
    html = page_html("title", [])
    for name in shown:
        assert f'"{name}":{{"label":' in html


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("ap_overall", 0.68749, "0.687"),
        ("ap_aligned_drop", -0.0001, "0.000"),
        ("ap_aligned_se", 0.00349, "0.0035"),
        ("n_q_tokens", 12345, "12,345"),
        ("layer", 7, "7"),
        ("q_R2_total", math.nan, "–"),
        ("q_beta_norm", 0.00004, "4.0e-05"),
    ],
)
def test_values_have_the_decimals_of_their_format(column, value, text):
    assert METRICS[column].show(value) == text


def test_a_value_is_shown_with_half_of_its_interval():
    assert METRICS["ap_overall"].show_half(0.68714, 0.0061) == "0.6871 ± 0.0061"
    assert METRICS["ap_overall"].show_half(0.6871, math.nan) == "0.687"
    assert METRICS["ap_overall"].show_half(math.nan, math.nan) == "–"
