"""Which keys a query sees: against a look at every key and every query."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_plasticity.estimate.visible import Visible
from helpers.plain_visible import sees


@settings(max_examples=30)
@given(size=st.none() | st.integers(1, 40), chunked=st.booleans(), far=st.sampled_from([0, 10**6]))
def test_windows_and_chunks_equal_a_look_at_every_key(size, chunked, far):
    visible = Visible(size, chunked and size is not None)
    assert visible.is_limited == (size is not None)
    places = np.arange(far, far + 60)
    number, end = visible.number(places.astype(float)), visible.end(places.astype(float))
    for place, count, last in zip(places.tolist(), number.tolist(), end.tolist(), strict=True):
        if size is not None or far == 0:
            keys = range(max(0, place - 100), place + 1)
            assert count == sum(sees(place, key, visible) for key in keys)
        seeing = [t for t in range(place, place + 100) if sees(t, place, visible)]
        assert last == (math.inf if size is None else seeing[-1] + 1)
