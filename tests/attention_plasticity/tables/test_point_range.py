"""The range of points: all of them, unless a few are far from the others."""

from __future__ import annotations

import numpy as np

from attention_plasticity.tables.point_range import drawn_range, inside


def test_points_that_are_together_are_all_inside() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-3.0, 3.0, (2, 500))
    low, high = drawn_range(x)
    assert low < x.min() < x.max() < high
    assert inside(x, y).all()


def test_a_few_far_points_are_outside() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 2000))
    x[7], y[9] = 400.0, -90.0
    assert np.flatnonzero(~inside(x, y)).tolist() == [7, 9]
    assert drawn_range(x)[1] < 10.0


def test_points_at_one_place_have_a_range() -> None:
    low, high = drawn_range(np.full(4, 2.5))
    assert low < 2.5 < high
