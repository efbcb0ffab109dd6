"""Intervals, tests, means and profiles from tables."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import attention_plasticity as ap
from attention_plasticity.figures import caption_of
from attention_plasticity.page.content import run_content
from attention_plasticity.roles import NO_ERRORS, OPEN, REPEATED_DECIDE
from attention_plasticity.tables.head_roles import why_unsure
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    half_width,
    head_half_width,
    mean_half_width,
    mean_over_heads,
    p_values,
    row_half_width,
)
from attention_plasticity.tables.profiles import head_profiles, heads_with_gaps
from helpers.report_runs import TEXT_GROUPS, write_run

FIRST, LAST, DROP = "ap_aligned_first20", "ap_aligned_last20", "ap_aligned_drop"


def test_half_width_is_that_of_students_t():
    assert half_width(0.01, 12) == pytest.approx(0.01 * stats.t.ppf(0.975, 11))
    assert math.isnan(half_width(0.01, math.nan))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_benjamini_hochberg_is_scipys(p):
    expected = stats.false_discovery_control(p) <= 0.05
    adjusted = stats.false_discovery_control(p)
    sure = np.abs(adjusted - 0.05) > 1e-9
    np.testing.assert_array_equal(benjamini_hochberg(np.array(p))[sure], expected[sure])


def test_p_values_are_two_sided():
    table = pd.DataFrame({DROP: [0.04], f"{DROP}_se": [0.02], "n_text_groups": [12]})
    assert p_values(table, DROP, None)[0] == pytest.approx(2 * stats.t.sf(2.0, 11))


def test_intervals_have_the_groups_of_their_quantity():
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


def test_every_reader_uses_the_groups_of_the_quantity(tmp_path):
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
    freedom = np.where(few, GROUPS_OF_DROP, TEXT_GROUPS) - 1
    factor = stats.t.ppf(0.975, freedom)
    half = factor * metrics[f"{DROP}_se"].to_numpy()
    page = run_content(run, "x")[1]["heads"]
    np.testing.assert_allclose(page[f"{DROP}_half_width"], half, rtol=1e-6)
    np.testing.assert_allclose(
        page[f"{FIRST}_half_width"][2],
        stats.t.ppf(0.975, TEXT_GROUPS - 1) * metrics[f"{FIRST}_se"][2],
        rtol=1e-6,
    )
    faded = int((metrics[DROP].abs() <= half).sum())
    p = 2 * stats.t.sf(metrics[DROP].abs() * factor / half, freedom)
    dots = int((stats.false_discovery_control(p) <= 0.05).sum())
    caption = caption_of(run.plot("map", metric=DROP)) or ""
    assert f"Heads whose interval contains 0 are faded ({faded})." in caption
    assert f"({dots} of {len(metrics)} tested heads; Benjamini-Hochberg)" in caption
    assert f"({GROUPS_OF_DROP} to {TEXT_GROUPS} groups of texts, Student's t)" in caption
    table = ap.summary([run], None, [FIRST, LAST, DROP]).set_index("metric")
    assert table["df"].tolist() == [TEXT_GROUPS - 1, GROUPS_OF_DROP - 1, GROUPS_OF_DROP - 1]
    mean = mean_over_heads(run, LAST)
    reach = stats.t.ppf(0.975, GROUPS_OF_DROP - 1) * mean.standard_error
    assert mean_half_width(mean) == pytest.approx(reach)


def test_cells_count_by_their_pairs_and_nan_ones_do_not():
    cells = pd.DataFrame(
        {
            "layer": 0,
            "q_head": [0, 0, 0, 1],
            "q_bucket": [2, 2, 2, 2],
            "k_bucket": [0, 1, 1, 0],
            "plasticity": [0.2, 0.8, np.nan, np.nan],
            "n_pairs": [1, 3, 0, 0],
        }
    )
    found = head_profiles(cells)
    assert found["plasticity"].iloc[0] == pytest.approx(0.65)
    assert np.isnan(found["plasticity"].iloc[1])
    assert heads_with_gaps(cells) == 2
    alike = head_profiles(cells.drop(columns="n_pairs"))
    assert alike["plasticity"].iloc[0] == pytest.approx(0.5)


T_11, T_7 = 2.200985, 2.364624  # of a table of Student's t: 97.5 %, 11 and 7 degrees of freedom


def test_scores_have_intervals_of_their_own_groups():
    table = pd.DataFrame(
        {
            "far_mass_se": [0.01, 0.02, np.nan, 0.01],
            "n_groups": [12, 12, 12, 1],
            "repeated_induction_se": [0.01, 0.02, 0.03, np.nan],
            "repeated_groups": [8, np.nan, 8, 8],
        }
    )
    expected = [0.01 * T_11, 0.02 * T_11, np.nan, np.nan]
    np.testing.assert_allclose(row_half_width(table, "far_mass"), expected, rtol=1e-6)
    expected = [0.01 * T_7, np.nan, 0.03 * T_7, np.nan]
    np.testing.assert_allclose(row_half_width(table, "repeated_induction"), expected, rtol=1e-6)
    assert np.isnan(row_half_width(table, "self_mass")).all()


def test_repeated_tokens_decide_if_their_scores_are_not_known():
    table = pd.DataFrame(
        {
            "role": ["unsure", "unsure", "unsure", "sink", "unsure"],
            "likely_role": ["sink", "far", "previous", "sink", "mixed"],
            "n_groups": 4,
            "repeated_induction": [np.nan, 0.1, np.nan, np.nan, np.nan],
        }
    )
    assert why_unsure(table).tolist() == [REPEATED_DECIDE, OPEN, OPEN, "", REPEATED_DECIDE]
    without = table.drop(columns="repeated_induction")
    assert why_unsure(without).tolist() == [REPEATED_DECIDE] * 2 + [OPEN, "", REPEATED_DECIDE]
    for groups in (3, np.nan):
        few = [NO_ERRORS] * 3 + ["", NO_ERRORS]
        assert why_unsure(table.assign(n_groups=groups)).tolist() == few


UNKNOWN = [math.nan, [math.nan] * 16, 0]
