"""Where an error was raised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qk_toolkit.files import read_json
from qk_toolkit.raised_in import is_in, is_raised_by_us, modules_passed


def test_the_last_module_raised_the_error() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    assert modules_passed(caught.value) == [__name__, "json", "json.decoder", "json.decoder"]
    assert not is_raised_by_us(caught.value)  # but by this test


def test_an_error_in_a_call_of_ours_is_ours() -> None:
    wrong: Any = 5
    with pytest.raises((TypeError, AttributeError)) as caught:
        read_json(wrong)
    assert is_raised_by_us(caught.value)


def test_packages() -> None:
    assert is_in("qk_dump.hub", ("qk_dump",))
    assert not is_in("qk_dumpling", ("qk_dump",))
