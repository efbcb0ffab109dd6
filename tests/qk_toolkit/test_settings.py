"""Settings from flags and YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchen import Kitchen, flag_refusal, from_flags, from_yaml, saved, yaml_refusal
from qk_toolkit.settings import (
    parse_indices,
    settings_from,
    validated,
)

# where a value comes from


def test_nothing_given_is_the_defaults() -> None:
    assert settings_from(Kitchen) == Kitchen()


def test_a_flag_wins_over_yaml_and_yaml_over_the_default(tmp_path: Path) -> None:
    path = saved(tmp_path, "cooks: 3\nheat: 0.25\n")

    kitchen = from_flags("--cooks", "4", yaml_path=path)

    assert kitchen == Kitchen(cooks=4, heat=0.25)


def test_a_flag_may_take_back_what_yaml_gives(tmp_path: Path) -> None:
    path = saved(tmp_path, "cellar: below\nopen_late: true\ntables: 1-3\n")
    words = ("--cellar", "none", "--open_late", "false", "--tables", "None")
    assert from_flags(*words, yaml_path=path) == Kitchen()


def test_a_yaml_value_of_every_kind_is_taken(tmp_path: Path) -> None:
    text = "{cooks: 3, heat: 0.25, open_late: true, style: rich, name: x, cellar: y, tables: 0-2}"
    assert from_yaml(tmp_path, text) == Kitchen(
        cooks=3, heat=0.25, open_late=True, style="rich", name="x", cellar="y", tables=[0, 1, 2]
    )


def test_null_in_yaml_is_no_value_for_an_optional_field(tmp_path: Path) -> None:
    assert from_yaml(tmp_path, "cellar: null\ntables: ~\nseats:\n") == Kitchen()


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}", "---\n"])
def test_an_empty_file_gives_the_defaults(tmp_path: Path, text: str) -> None:
    assert from_yaml(tmp_path, text) == Kitchen()


@pytest.mark.parametrize(
    ("text", "cooks"), [("menu:\n  cooks: 5\n", 5), ("cooks: 5\n", 5), ("menu:\n", 2)]
)
def test_fields_may_lie_under_the_section_or_flat(tmp_path: Path, text: str, cooks: int) -> None:
    assert from_yaml(tmp_path, text, section="menu").cooks == cooks


def test_an_unknown_field_under_the_section_is_refused(tmp_path: Path) -> None:
    message = yaml_refusal(tmp_path, "menu:\n  cokos: 5\n", section="menu")
    assert message == "cokos: unknown field; did you mean cooks?"


@pytest.mark.parametrize("text", ["menu: 3\n", "menu: [cooks]\n"])
def test_a_section_that_holds_no_fields_is_refused(tmp_path: Path, text: str) -> None:
    assert "expected 'name: value' lines" in yaml_refusal(tmp_path, text, section="menu")


# indices


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("8,0-3", [0, 1, 2, 3, 8]),
        ("5", [5]),
        ("0", [0]),
        ("4-4", [4]),
        ("1, 2 ,3", [1, 2, 3]),
        ("3,1-3", [1, 2, 3]),
        (5, [5]),
        ([2, 1, 2], [1, 2]),
        ([], []),
    ],
)
def test_indices_are_read_sorted_and_once(given: object, expected: list[int]) -> None:
    assert parse_indices(given) == expected
    assert validated(Kitchen, {"tables": given}).tables == expected


@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-1", "3-1", "1,,2", "1.5", "1-2-3", "0x3", "1;2", "²"]
)
def test_text_that_is_no_indices_is_refused(text: str) -> None:
    message = flag_refusal(f"--tables={text}")
    assert message == f"--tables: expected a list of integers such as 0-3,8, got {text!r}"


@pytest.mark.parametrize("value", ["[1, x]", "[-1]", "-1", "1.5", "true", "[true]", "{a: 1}"])
def test_yaml_that_is_no_indices_is_refused(tmp_path: Path, value: str) -> None:
    message = yaml_refusal(tmp_path, f"tables: {value}\n")
    assert message.startswith("tables: expected a list of integers such as 0-3,8, got ")


@given(st.sets(st.integers(0, 60), min_size=1))
def test_a_list_and_its_text_are_the_same_indices(indices: set[int]) -> None:
    text = ",".join(map(str, indices))
    assert parse_indices(text) == parse_indices(list(indices)) == sorted(indices)
