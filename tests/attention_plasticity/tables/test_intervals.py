"""Intervals, tests and means from tables."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import attention_plasticity as ap
from attention_plasticity.figures import caption_of
from attention_plasticity.page.content import run_content
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    half_width,
    head_half_width,
    mean_half_width,
    mean_over_heads,
    p_values,
)
from report_runs import TEXT_GROUPS, write_run

FIRST, LAST, DROP = "ap_aligned_first20", "ap_aligned_last20", "ap_aligned_drop"


def test_half_width_is_that_of_students_t() -> None:
    assert half_width(0.01, 12) == pytest.approx(0.01 * stats.t.ppf(0.975, 11))
    assert math.isnan(half_width(0.01, math.nan))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_benjamini_hochberg_is_scipys(p: list[float]) -> None:
    expected = stats.false_discovery_control(p) <= 0.05
    adjusted = stats.false_discovery_control(p)
    sure = np.abs(adjusted - 0.05) > 1e-9
    np.testing.assert_array_equal(benjamini_hochberg(np.array(p))[sure], expected[sure])


def test_p_values_are_two_sided() -> None:
    table = pd.DataFrame({DROP: [0.04], f"{DROP}_se": [0.02], "n_text_groups": [12]})
    assert p_values(table, DROP, None)[0] == pytest.approx(2 * stats.t.sf(2.0, 11))


def test_intervals_have_the_groups_of_their_quantity() -> None:
    """A head that the table of influences does not have keeps the groups of the head."""
    table = pd.DataFrame(
        {"layer": 0, "q_head": [0, 1], DROP: 0.04, f"{DROP}_se": 0.02, "n_text_groups": 12}
    )
    rows = pd.DataFrame({"layer": 0, "q_head": [0, 0], "quantity": ["ap_aligned", DROP]})
    influences = rows.assign(n_groups=[12, 5])
    expected = 0.02 * stats.t.ppf(0.975, [4, 11])
    np.testing.assert_allclose(head_half_width(table, DROP, influences), expected)
    p = p_values(table, DROP, influences)
    np.testing.assert_allclose(p, 2 * stats.t.sf(2.0, [4, 11]))
    without = head_half_width(table.drop(columns="n_text_groups"), DROP, influences)
    np.testing.assert_allclose(without, [expected[0], np.nan])


GROUPS_OF_DROP = 4


def test_every_reader_uses_the_groups_of_the_quantity(tmp_path: Path) -> None:
    """The page, the map of drops and the comparison, where few texts reach the end."""
    folder = write_run(tmp_path / "run", position=True)
    path = folder / "head_influences.csv"
    influences = pd.read_csv(path)
    late = influences["quantity"].isin([LAST, DROP])
    influences.loc[late & (influences["q_head"] == 0), "n_groups"] = GROUPS_OF_DROP
    influences.to_csv(path, index=False, na_rep="nan")
    run = ap.open_run(folder)
    metrics = run.head_metrics
    few = metrics["q_head"] == 0
    factor = stats.t.ppf(0.975, np.where(few, GROUPS_OF_DROP, TEXT_GROUPS) - 1)
    half = factor * metrics[f"{DROP}_se"].to_numpy()
    page = run_content(run, "x")[1]["heads"]
    np.testing.assert_allclose(page[f"{DROP}_half_width"], half, rtol=1e-6)
    np.testing.assert_allclose(
        page[f"{FIRST}_half_width"][2],
        stats.t.ppf(0.975, TEXT_GROUPS - 1) * metrics[f"{FIRST}_se"][2],
        rtol=1e-6,
    )
    dots = int((metrics[DROP].abs() > half).sum())
    caption = caption_of(run.plot("map", metric="drop")) or ""
    assert f"excludes 0 ({dots} of {len(metrics)} tested heads)" in caption
    assert f"({GROUPS_OF_DROP} to {TEXT_GROUPS} groups of texts, Student's t)" in caption
    table = ap.summary([run], None, [FIRST, LAST, DROP]).set_index("metric")
    assert table["df"].tolist() == [TEXT_GROUPS - 1, GROUPS_OF_DROP - 1, GROUPS_OF_DROP - 1]
    mean = mean_over_heads(run, LAST)
    reach = stats.t.ppf(0.975, GROUPS_OF_DROP - 1) * mean.standard_error
    assert mean_half_width(mean) == pytest.approx(reach)
