"""The table of roles as figures and pages use it: checked labels, and colours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.metrics import ROLES
from attention_plasticity.roles import RESTING, UNSURE
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


def repeated_decides(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """(heads,) whether a role is unsure because scores on repeated tokens are not known."""
    column = ROLES_OF_HEADS[0].repeated_column
    unknown = table.reindex(columns=[column])[column].isna()
    return np.asarray(is_unsure(table) & unknown & table["likely_role"].isin(RESTING))
