"""Groups of texts. Standard errors come from the differences between groups.

Arrays in, arrays out; numpy only. Rows of one text are similar, so texts are the independent units
of a sample. Every text belongs to one of 16 groups, the same group for all heads of a dump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.arrays import Ints

MIN_GROUPS = 4  # of a head; with fewer groups its standard errors are NaN
MIN_BUCKET_GROUPS = 3  # of a query bucket; with fewer, the standard errors of its cells are NaN


@dataclass(frozen=True)
class TextGroups:
    """The group of every text: the rank of its `example_id` in the dump, modulo 16."""

    ids: Ints | None = None  # (texts,) ascending; None: the id is used as rank

    def of(self, example_id: Ints) -> Ints:
        """(n,) group of the text of every row."""
        rank = example_id if self.ids is None else np.searchsorted(self.ids, example_id)
        return np.asarray(rank % GROUPS, np.int64)


def rows_per_group(group: Ints) -> Ints:
    """(16,) number of rows of every group."""
    return np.bincount(group, minlength=GROUPS)


def jackknife_factor(counts: npt.NDArray[Any], axis: int = -1) -> npt.NDArray[np.float64]:
    """`√(G/(G−1))` for G groups with rows; 1 for a single group."""
    groups = np.count_nonzero(counts, axis=axis).astype(np.float64)
    factor: npt.NDArray[np.float64] = np.sqrt(groups / np.maximum(groups - 1.0, 1.0))
    return np.maximum(factor, 1.0)
