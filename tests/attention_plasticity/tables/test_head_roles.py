"""The table of roles as figures and pages use it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attention_plasticity.tables.head_roles import (
    repeated_decides,
)
from attention_plasticity.tables.intervals import row_half_width

T_11, T_7 = 2.200985, 2.364624  # of a table of Student's t: 97.5 %, 11 and 7 degrees of freedom


def test_scores_have_intervals_of_their_own_groups() -> None:
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


def test_repeated_tokens_decide_if_their_scores_are_not_known() -> None:
    table = pd.DataFrame(
        {
            "role": ["unsure", "unsure", "unsure", "sink", "unsure"],
            "likely_role": ["sink", "far", "previous", "sink", "mixed"],
            "repeated_induction": [np.nan, 0.1, np.nan, np.nan, np.nan],
        }
    )
    assert repeated_decides(table).tolist() == [True, False, False, False, True]
    without = table.drop(columns="repeated_induction")
    assert repeated_decides(without).tolist() == [True, True, False, False, True]
