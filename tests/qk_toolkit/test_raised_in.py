"""Who raised an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qk_toolkit.files import read_json
from qk_toolkit.raised_in import is_raised_by_us


def test_an_error_in_a_call_of_ours_is_ours() -> None:
    wrong: Any = 5
    with pytest.raises((TypeError, AttributeError)) as caught:
        read_json(wrong)
    assert is_raised_by_us(caught.value)
    with pytest.raises(ValueError, match="Expecting") as other:
        json.loads("{")
    assert not is_raised_by_us(other.value)  # but by this test
