"""Whether a Triton kernel can be used."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from qk_toolkit.raised_in import is_our_bug

ROWS = 64  # of a trial; as many as the largest tile of the kernels


def runs(trial: Callable[[], bool], width: int) -> bool:
    """Whether a trial of a kernel with vectors of `width` dimensions gives the right numbers.

    Triton may be missing, may find no C compiler, or the vectors may be too wide for the memory of
    the GPU's processors.
    """
    try:
        return trial()
    except Exception as error:  # of many types, from Triton, its compiler and the driver
        if is_our_bug(error):
            raise
        reason = " ".join(str(error).split())[:200]
        warnings.warn(
            f"the Triton kernels of attention cannot be used for vectors of {width} dimensions "
            f"({type(error).__name__}: {reason}); plain torch is used, which is slower",
            RuntimeWarning,
            stacklevel=1,
        )
        return False
