"""YAML that is written is read as the same values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qk_toolkit.strict_yaml import parse_yaml, yaml_text

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES)
def test_values_stay_the_same(values: Any) -> None:
    assert parse_yaml(yaml_text(values)) == values


@pytest.mark.parametrize("text", ["1234e567", "1e-3", "0x10", "yes", "null", "1_000", "a: b"])
def test_text_that_looks_like_another_value_stays_text(text: str) -> None:
    assert parse_yaml(yaml_text({"revision": text})) == {"revision": text}


def test_a_value_that_occurs_twice_has_no_alias() -> None:
    shared = {"a": [1, 2]}
    assert "&" not in yaml_text({"one": shared, "two": shared})
