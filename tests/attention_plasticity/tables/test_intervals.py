"""Intervals, tests and means from tables."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attention_plasticity.run.head_means import gap_is_large, mean_estimate
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    corrected,
    half_width,
    p_values,
)


def test_half_width_is_that_of_students_t() -> None:
    assert half_width(0.01, 12) == pytest.approx(0.01 * stats.t.ppf(0.975, 11))
    assert math.isnan(half_width(0.01, math.nan))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_benjamini_hochberg_is_scipys(p: list[float]) -> None:
    expected = stats.false_discovery_control(p) <= 0.05
    adjusted = stats.false_discovery_control(p)
    sure = np.abs(adjusted - 0.05) > 1e-9
    np.testing.assert_array_equal(benjamini_hochberg(np.array(p))[sure], expected[sure])


def test_nan_is_no_test() -> None:
    p = np.array([0.001, np.nan, 0.9])
    assert benjamini_hochberg(p).tolist() == [True, False, False]
    assert not benjamini_hochberg(np.array([np.nan])).any()


def test_p_values_are_two_sided_and_of_corrected_values() -> None:
    table = pd.DataFrame(
        {"ap_drop": [0.05], "ap_drop_bias": [0.01], "ap_drop_se": [0.02], "n_text_groups": [12]}
    )
    assert corrected(table, "ap_drop").tolist() == pytest.approx([0.04])
    assert p_values(table, "ap_drop")[0] == pytest.approx(2 * stats.t.sf(2.0, 11))


def test_influences_are_averaged_before_they_are_squared() -> None:
    one, other = [0.1, -0.1] + [0.0] * 14, [-0.1, 0.1] + [0.0] * 14
    mean = mean_estimate([0.5, 0.7], [0.0, 0.1], [one, other], [5, 4])
    assert mean.value == pytest.approx(0.55)
    assert mean.standard_error == 0.0  # the texts move both heads in opposite directions
    assert mean.heads == 2
    alike = mean_estimate([0.5, 0.7], [0.0, 0.1], [one, one], [5, 5])
    assert alike.standard_error == pytest.approx(math.hypot(0.1, 0.1))


def test_heads_without_a_value_are_left_out_and_unknown_bias_is_no_correction() -> None:
    nan = [math.nan] * 16
    mean = mean_estimate([0.5, math.nan], [math.nan, math.nan], [nan, nan], [4, math.nan])
    assert (mean.value, mean.heads, mean.corrected) == (0.5, 1, False)
    assert math.isnan(mean.standard_error)
    assert mean_estimate([math.nan], [0.0], [nan], [0]).heads == 0


@pytest.mark.parametrize(
    ("gap", "error", "large"),
    [(0.03, 0.001, True), (-0.03, 0.01, True), (0.03, 0.02, False), (0.01, 0.001, False)],
)
def test_a_gap_is_large_if_it_is_large_and_sure(gap: float, error: float, large: bool) -> None:
    assert gap_is_large({"ap_gaussian_gap": gap, "ap_gaussian_gap_se": error}) is large
    assert not gap_is_large({"ap_gaussian_gap": math.nan, "ap_gaussian_gap_se": error})
    assert not gap_is_large({"ap_gaussian_gap": gap, "ap_gaussian_gap_se": math.nan})
