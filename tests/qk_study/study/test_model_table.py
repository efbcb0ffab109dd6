"""Numbers of parameters as text."""

from __future__ import annotations

import pytest

from qk_study.study.model_table import short_number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (135e6, "135M"),
        (1.7e9, "1.7B"),
        (2e12, "2T"),
        (1e5, "100K"),
        (999.0, "999"),
        (7.25e9, "7.25B"),
    ],
)
def test_short_numbers(number: float, text: str) -> None:
    assert short_number(number) == text
