"""Cells summed up per query bucket."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.tables.profiles import head_profiles, heads_with_gaps


def test_cells_count_by_their_pairs_and_nan_ones_do_not() -> None:
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
