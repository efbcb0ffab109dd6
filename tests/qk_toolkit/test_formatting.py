"""Numbers and lists as text, and values as YAML."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qk_toolkit.formatting import count, duration, format_heads, index_ranges, with_half
from qk_toolkit.settings import parse_indices
from qk_toolkit.strict_yaml import parse_yaml, yaml_text


@pytest.mark.parametrize(
    ("indices", "text"),
    [([8, 0, 1, 2, 3], "0-3,8"), ([5], "5"), ([1, 2], "1-2"), ([0, 2, 4], "0,2,4"), ([], "")],
)
def test_index_ranges(indices, text):
    assert index_ranges(indices) == text


@given(st.sets(st.integers(0, 200), min_size=1))
def test_index_ranges_can_be_parsed(indices):
    assert parse_indices(index_ranges(indices)) == sorted(indices)


def test_heads_are_told_by_layer_whatever_their_order():
    heads = [(2, 5), (0, 8), (0, 1), (0, 0), (0, 2), (0, 3)]
    assert format_heads(heads) == "layer 0: 0-3,8; layer 2: 5"
    assert format_heads([(7, 1), (3, 1), (2, 1), (9, 0)]) == "layers 2-3,7: 1; layer 9: 0"


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (0.68714, 0.0061, "0.6871 ± 0.0061"),
        (-0.00083, 0.00012, "-0.00083 ± 0.00012"),  # not -0.001 ± 0.000
        (0.71, 0.31, "0.71 ± 0.31"),
        (0.5, 0.0996, "0.50 ± 0.10"),
        (12.345, 1.26, "12.3 ± 1.3"),
        (687.2, 12.3, "687 ± 12"),
        (31234.5, 4321.0, "31234 ± 4321"),
        (-0.00001, 0.21, "0.00 ± 0.21"),
        (0.25, 0.0, "0.250 ± 0.000"),
        (3.21e-9, 1.1e-10, "0.00000000321 ± 0.00000000011"),
    ],
)
def test_two_digits_of_the_error_decide(value, half, text):
    assert with_half(value, half) == text


def test_count():
    assert [count(n, "head") for n in (0, 1, 2000)] == ["0 heads", "1 head", "2,000 heads"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.4, "59 s"), (60, "1 min"), (750, "12 min"), (3599, "1 h 0 min")],
)
def test_a_duration_has_at_most_two_units(seconds, words):
    assert duration(seconds) == words


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
def test_values_stay_the_same(values):
    assert parse_yaml(yaml_text(values)) == values


@pytest.mark.parametrize("text", ["1234e567", "1e-3", "0x10", "yes", "null", "1_000", "a: b"])
def test_text_that_looks_like_another_value_stays_text(text):
    assert parse_yaml(yaml_text({"revision": text})) == {"revision": text}


def test_a_value_that_occurs_twice_has_no_alias():
    shared = {"a": [1, 2]}
    assert "&" not in yaml_text({"one": shared, "two": shared})
