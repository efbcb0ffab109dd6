"""Settings from flags and YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchen import Kitchen, flag_refusal, from_flags, from_yaml, parser, saved, yaml_refusal
from qk_dump.settings import (
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


# flags


@pytest.mark.parametrize(
    "words",
    [
        ("--open_late", "--cooks", "3"),
        ("--open-late", "--cooks", "3"),
        ("--open-late=true", "--cooks=3"),
        ("--open_late", "true", "--cooks", "3"),
        ("--cooks", "3", "--open_late", "YES"),
        ("--open_late", "1", "--cooks", "3"),
    ],
    ids=" ".join,
)
def test_flags_are_taken_in_every_spelling(words: tuple[str, ...]) -> None:
    assert from_flags(*words) == Kitchen(open_late=True, cooks=3)


@pytest.mark.parametrize("text", ["false", "False", "no", "0"])
def test_a_switch_can_be_turned_off(tmp_path: Path, text: str) -> None:
    path = saved(tmp_path, "open_late: true")
    assert from_flags("--open-late", text, yaml_path=path).open_late is False


@pytest.mark.parametrize("words", [("--name=a-b=c-d",), ("--name", "a-b=c-d")])
def test_dashes_in_a_value_stay(words: tuple[str, ...]) -> None:
    assert from_flags(*words).name == "a-b=c-d"


def test_the_last_of_a_repeated_flag_counts() -> None:
    assert from_flags("--cooks", "3", "--cooks", "4").cooks == 4


@pytest.mark.parametrize("text", ["none", "None", "NULL"])
def test_none_means_no_value_only_where_that_is_the_default(text: str) -> None:
    kitchen = from_flags("--cellar", text, "--seats", text, "--name", text)
    assert kitchen.cellar is None
    assert kitchen.seats is None
    assert kitchen.name == text


def test_none_is_no_number() -> None:
    assert flag_refusal("--cooks", "none").startswith("--cooks: expected an integer")


def test_an_unknown_flag_names_the_nearest() -> None:
    assert (
        flag_refusal("--open-lat", "true") == "--open_lat: unknown flag; did you mean --open_late?"
    )
    assert flag_refusal("--coks=3") == "--coks: unknown flag; did you mean --cooks?"


def test_a_flag_like_none_of_ours_points_to_the_help() -> None:
    assert flag_refusal("--zzzzzz") == "--zzzzzz: unknown flag; --help lists them all"


def test_the_beginning_of_a_flag_is_not_the_flag() -> None:
    assert "unknown flag" in flag_refusal("--cook", "3")


def test_a_value_without_a_flag_is_refused() -> None:
    assert flag_refusal("cooks", "--heat", "0.1").startswith("'cooks': unexpected argument")


def test_the_help_tells_every_field_with_its_default() -> None:
    text = " ".join(parser().format_help().split())
    for name, field in Kitchen.model_fields.items():
        assert f"--{name}" in text
        assert (field.description or "?") in text
    assert "people at the stove [2]" in text
    assert "plain|rich" in text


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
