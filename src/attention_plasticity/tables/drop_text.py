"""In how many heads the drop of plasticity differs from 0, as a sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attention_plasticity.metrics import ALIGNED_DROP
from attention_plasticity.tables.intervals import benjamini_hochberg, p_values
from qk_toolkit.formatting import count


def significant_drops(table: pd.DataFrame, influences: pd.DataFrame | None) -> str | None:
    """A sentence about all heads; None if no head has a standard error of its drop.

    `table` has a row per head, and `influences` the influences of the run.
    """
    p = p_values(table, ALIGNED_DROP, influences)  # (heads,)
    tested = int(np.count_nonzero(~np.isnan(p)))
    if tested == 0:
        return None
    found, drop = benjamini_hochberg(p), table[ALIGNED_DROP].to_numpy(np.float64)
    lower, higher = int((found & (drop > 0)).sum()), int((found & (drop < 0)).sum())
    differs = f"{lower + higher:,} of {count(tested, 'head')}"
    return (
        f"the drop differs from 0 in {differs} (false discovery rate 5 %): {lower:,} lower in the "
        f"last fifth, {higher:,} higher"
    )
