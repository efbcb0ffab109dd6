"""The table of roles as figures and pages use it: checked labels, and colours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.estimate.quantity import MIN_GROUPS
from attention_plasticity.metrics import ROLES
from attention_plasticity.roles import NO_ERRORS, OPEN, REPEATED_DECIDE, RESTING, UNSURE
from attention_plasticity.roles import ROLES as ROLES_OF_HEADS

SCORES = tuple(metric for metric in ROLES.columns if metric.error)
"""The columns with a standard error."""
COLOURS = {
    "induction": "#d55e00",
    "duplicate": "#e69f00",
    "previous": "#0072b2",
    "self": "#cc79a7",
    "local": "#56b4e9",
    "far": "#009e73",
    "sink": "#e3d55a",
    "mixed": "#8d949c",
}
"""The colours of roles on white: those by Okabe and Ito, for colour-blind readers, and grey."""
DARK_COLOURS = {
    "induction": "#e8702a",
    "duplicate": "#f0b429",
    "previous": "#2f8fd0",
    "self": "#d98fb8",
    "local": "#7cc7f5",
    "far": "#1fb58a",
    "sink": "#d6c94a",
    "mixed": "#8d949c",
}
"""The same on a dark page."""


def is_unsure(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """(heads,) whether the role of a head is unsure."""
    return np.asarray(table["role"] == UNSURE)


def why_unsure(table: pd.DataFrame) -> npt.NDArray[np.object_]:
    """(heads,) why a role is unsure: a sentence of `roles.py`; empty if the role is sure."""
    column = ROLES_OF_HEADS[0].repeated_column
    without_repeated = table.reindex(columns=[column])[column].isna()
    reasons = np.select(
        [
            ~is_unsure(table),
            ~(table["n_groups"] >= MIN_GROUPS),
            without_repeated & table["likely_role"].isin(RESTING),
        ],
        ["", NO_ERRORS, REPEATED_DECIDE],
        OPEN,
    )
    return np.asarray(reasons, np.object_)
