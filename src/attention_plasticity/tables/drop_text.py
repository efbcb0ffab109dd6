"""In how many heads the drop of plasticity differs from 0, as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from attention_plasticity.run.records import Metrics
from attention_plasticity.tables.intervals import benjamini_hochberg, corrected, p_values
from attention_plasticity.tables.main_plasticity import PlasticityColumns
from qk_toolkit.formatting import count


def significant_drops(
    metrics: Sequence[Metrics], shown: PlasticityColumns, influences: Path
) -> str | None:
    """A sentence about all heads; None if no head has a standard error of its drop.

    `influences` is the table of influences of the run.
    """
    table = pd.DataFrame(metrics)
    known = pd.read_csv(influences) if influences.exists() else None  # it can be at a URL
    p = p_values(table, shown.drop, known)  # (heads,)
    tested = int(np.count_nonzero(~np.isnan(p)))
    if tested == 0:
        return None
    found, drop = benjamini_hochberg(p), corrected(table, shown.drop).to_numpy(np.float64)
    lower, higher = int((found & (drop > 0)).sum()), int((found & (drop < 0)).sum())
    differs = f"{lower + higher:,} of {count(tested, 'head')}"
    return (
        f"the drop differs from 0 in {differs} (false discovery rate 5 %): {lower:,} lower in the "
        f"last fifth, {higher:,} higher"
    )
