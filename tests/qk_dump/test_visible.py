"""The first key that a query sees, against a mask made by loops."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from qk_dump.visible import first_visible


@given(
    length=st.integers(1, 40),
    window=st.one_of(st.none(), st.integers(1, 50)),
    chunked=st.booleans(),
)
def test_arrays_and_tensors_agree_with_a_mask(
    length: int, window: int | None, chunked: bool
) -> None:
    expected = []
    for query in range(length):
        keys = [*range(query + 1)]
        if window is not None and chunked:
            keys = [key for key in keys if key // window == query // window]
        elif window is not None:
            keys = keys[-window:]
        expected.append(keys[0])
    position = np.arange(length)
    assert first_visible(position, window, chunked).tolist() == expected
    assert first_visible(position.astype(np.float64), window, chunked).tolist() == expected
    assert first_visible(torch.arange(length), window, chunked).tolist() == expected
