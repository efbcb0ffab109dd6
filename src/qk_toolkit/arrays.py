"""Types of numpy arrays, for annotations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Vectors = npt.NDArray[np.floating[Any]]
"""Queries or keys, in the precision of their file."""
