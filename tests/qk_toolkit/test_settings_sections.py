"""Settings in sections: where a value comes from, and how a refusal is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import describe, fields_of, settings_from, validated
from restaurant import (
    Garden,
    House,
    Menu,
    Oven,
    Restaurant,
    flag_refusal,
    from_flags,
    from_yaml,
    yaml_refusal,
)

NAMED = "menu: {name: a}\n"


def restaurant(**sections: Any) -> Restaurant:
    return Restaurant(menu=Menu(name="a"), **sections)


# where a value comes from


def test_fields_come_from_nested_mappings(tmp_path: Path) -> None:
    text = "menu:\n  name: a\nhouse:\n  oven:\n    fuel: wood\n  seats: 3\nopen_late: true\n"
    expected = restaurant(house=House(oven=Oven(fuel="wood"), seats=3), open_late=True)
    assert from_yaml(tmp_path, text) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("--menu.name", "a", "--house.oven.fuel", "wood", "--open_late"),
        ("--menu.name=a", "--house.oven.fuel=wood", "--open-late=true"),
    ],
)
def test_fields_come_from_dotted_flags(words: tuple[str, ...]) -> None:
    expected = restaurant(house=House(oven=Oven(fuel="wood")), open_late=True)
    assert from_flags(*words) == expected


def test_a_flag_leaves_the_other_fields_of_its_section(tmp_path: Path) -> None:
    text = "menu: {name: a, dishes: 7}\nhouse: {seats: 3, oven: {fuel: wood, heat: 0.25}}\n"

    made = from_yaml(tmp_path, text, "--menu.soups", "2", "--house.oven.heat", "0.75")

    assert made.menu == Menu(name="a", dishes=7, soups=2)
    assert made.house == House(seats=3, oven=Oven(fuel="wood", heat=0.75))


def test_a_flag_wins_over_yaml_at_every_depth(tmp_path: Path) -> None:
    text = "menu: {name: b}\nhouse: {seats: 3, oven: {fuel: wood}}\n"
    words = ("--menu.name", "a", "--house.seats", "4", "--house.oven.fuel", "gas")
    assert from_yaml(tmp_path, text, *words) == restaurant(house=House(seats=4))


def test_a_flag_changes_one_of_two_places_that_share_a_yaml_anchor(tmp_path: Path) -> None:
    text = "house: {oven: &o {heat: 0.25}}\nmenu: {name: a, prices: *o}\n"
    made = from_yaml(tmp_path, text, "--house.oven.heat", "0.75")
    assert (made.house.oven.heat, made.menu.prices) == (0.75, {"heat": 0.25})


@pytest.mark.parametrize("text", ["house:\n", "house: {}\n", "house:\n  oven:\n", ""])
def test_a_section_with_nothing_in_it_has_its_defaults(tmp_path: Path, text: str) -> None:
    assert from_yaml(tmp_path, NAMED + text) == restaurant()


# a section that may be absent


@pytest.mark.parametrize("text", ["house: {garden: null}\n", "house:\n  garden:\n", ""])
def test_an_optional_section_may_be_null(tmp_path: Path, text: str) -> None:
    assert from_yaml(tmp_path, NAMED + text).house.garden is None


@pytest.mark.parametrize("text", ["", "house: {garden: null}\n", "house: {seats: 20}\n"])
def test_a_flag_inside_an_optional_section_creates_it(tmp_path: Path, text: str) -> None:
    made = from_yaml(tmp_path, NAMED + text, "--house.garden.tables", "1-3")
    assert made == restaurant(house=House(garden=Garden(tables=[1, 2, 3])))


@pytest.mark.parametrize("word", ["none", "None"])
def test_a_flag_takes_back_an_optional_section(tmp_path: Path, word: str) -> None:
    text = NAMED + "house: {garden: {tables: 1-3}}\n"
    assert from_yaml(tmp_path, text, "--house.garden", word).house.garden is None


def test_a_section_taken_back_can_be_given_anew(tmp_path: Path) -> None:
    text = NAMED + "house: {garden: {tables: 1-3, lamps: 4}}\n"
    words = ("--house.garden.tables", "5", "--house.garden", "none")
    assert from_yaml(tmp_path, text, *words).house.garden == Garden(tables=[5])


def test_an_optional_section_is_none_or_its_fields() -> None:
    assert flag_refusal("--house.garden", "big").startswith("--house.garden: invalid choice: 'big'")
    with pytest.raises(ConfigError, match=r"^--house.garden: expected name: value lines, got 'x'$"):
        settings_from(Restaurant, flags={"house.garden": "x"})


def test_an_optional_section_still_needs_its_required_fields(tmp_path: Path) -> None:
    message = yaml_refusal(tmp_path, NAMED + "house: {garden: {lamps: 3}}\n")
    assert message == "FILE: house.garden.tables: is required (that are laid outside)"


# mappings


def test_a_mapping_is_taken_from_yaml(tmp_path: Path) -> None:
    made = from_yaml(tmp_path, "menu: {name: a, prices: {soup: 3, meat: {small: 1e1}}}\n")
    assert made.menu.prices == {"soup": 3, "meat": {"small": 10.0}}


def test_a_mapping_is_taken_from_a_flag_as_a_whole(tmp_path: Path) -> None:
    text = "menu: {name: a, prices: {soup: 3}}\n"
    made = from_yaml(tmp_path, text, "--menu.prices", "{meat: {small: 1e1}}")
    assert made.menu.prices == {"meat": {"small": 10.0}}
    assert from_yaml(tmp_path, text, "--menu.prices", "none").menu.prices is None


@pytest.mark.parametrize("value", ["soup", "3", "[soup]", "{1: 2}", "true"])
def test_what_is_no_mapping_of_names_is_refused(tmp_path: Path, value: str) -> None:
    expected = "menu.prices: expected a mapping such as {name: value}, got "
    text = f"menu: {{name: a, prices: {value}}}\n"
    assert yaml_refusal(tmp_path, text).startswith(f"FILE: {expected}")
    assert flag_refusal("--menu.name=a", f"--menu.prices={value}").startswith(f"--{expected}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{a: 1, a: 2}", "'a' is given twice"), ("{a: [1}", ""), ("!!python/name:os.getcwd", "")],
)
def test_a_mapping_that_is_no_yaml_is_refused(text: str, problem: str) -> None:
    message = flag_refusal("--menu.name=a", f"--menu.prices={text}")
    assert message.startswith("--menu.prices: is not valid YAML: line 1: ")
    assert problem in message


# refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("house: {seats: 0}", "house.seats: expected an integer of at least 1, got 0"),
        ("house: {seats: many}", "house.seats: expected an integer of at least 1, got 'many'"),
        ("house: {oven: {fuel: coal}}", "house.oven.fuel: expected one of gas, wood, got 'coal'"),
        (
            "house: {oven: {heat: 1}}",
            "house.oven.heat: expected a number above 0 and below 1, got 1",
        ),
        (
            "house: {garden: {tables: [1, x]}}",
            "house.garden.tables: expected a list of integers such as 0-3,8, got [1, 'x']",
        ),
        ("open_late: 1", "open_late: expected true or false, got 1"),
        ("house: warm", "house: expected name: value lines, got 'warm'"),
        ("house: [seats]", "house: expected name: value lines, got ['seats']"),
        ("house: {oven: true}", "house.oven: expected name: value lines, got true"),
        ("house: {garden: 3}", "house.garden: expected name: value lines, got 3"),
    ],
)
def test_a_bad_value_is_told_by_its_dotted_name(tmp_path: Path, text: str, message: str) -> None:
    assert yaml_refusal(tmp_path, NAMED + text) == f"FILE: {message}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--house.seats", "0"), "--house.seats: expected an integer of at least 1, got 0"),
        (("--house.oven.fuel", "coal"), "--house.oven.fuel: expected one of gas, wood, got 'coal'"),
        (("--house.garden.lamps", "3"), "--house.garden.tables: is required (that are laid out"),
    ],
)
def test_a_bad_flag_is_told_by_its_dotted_name(words: tuple[str, ...], message: str) -> None:
    assert flag_refusal("--menu.name", "a", *words).startswith(message)


def test_a_flag_does_not_hide_a_section_that_is_none(tmp_path: Path) -> None:
    message = yaml_refusal(tmp_path, NAMED + "house: warm\n", "--house.oven.fuel", "wood")
    assert message == "FILE: house: expected name: value lines, got 'warm'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("house: {seat: 3}", "house.seat: unknown field; did you mean seats?"),
        ("house: {oven: {het: 3}}", "house.oven.het: unknown field; did you mean heat?"),
        ("hose: {seats: 3}", "hose: unknown field; did you mean house?"),
        ("house: {open-late: 3}", "house.open-late: unknown field; did you mean open_late?"),
        ("house: {zzzz: 3}", "house.zzzz: unknown field; --help lists them all"),
        ("house: {3: 3}", "house.3: unknown field; --help lists them all"),
        ('house: {"a\\nb": 3}', "house.a b: unknown field; --help lists them all"),
        ("house: {dishes: 3}", "house.dishes: unknown field; did you mean menu.dishes?"),
        ("seats: 3", "seats: unknown field; did you mean house.seats?"),
        ("oven: {fuel: gas}", "oven: unknown field; did you mean house.oven?"),
        ("house: {fuel: gas}", "house.fuel: unknown field; did you mean house.oven.fuel?"),
        ("house.seats: 3", "house.seats: unknown field; did you mean house?"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(tmp_path: Path, text: str, message: str) -> None:
    assert yaml_refusal(tmp_path, NAMED + text) == f"FILE: {message}"


def test_a_name_of_two_sections_is_told_with_both(tmp_path: Path) -> None:
    message = yaml_refusal(tmp_path, "menu: {name: a, lamps: 3}")
    hint = "did you mean house.lamps or house.garden.lamps?"
    assert message == f"FILE: menu.lamps: unknown field; {hint}"


@pytest.mark.parametrize("text", ["", "menu:\n", "menu: {}\n", "menu: {dishes: 3}\n"])
def test_a_missing_field_is_told_with_what_it_is(tmp_path: Path, text: str) -> None:
    assert yaml_refusal(tmp_path, text) == "FILE: menu.name: is required (on the cover)"


def test_a_missing_field_is_told_as_a_flag_when_there_is_no_file() -> None:
    assert flag_refusal("--house.seats", "3") == "--menu.name: is required (on the cover)"


def test_fields_that_contradict_each_other_are_told_by_where_the_first_was_given(
    tmp_path: Path,
) -> None:
    assert flag_refusal("--menu.name=a", "--menu.soups=9") == "--menu.soups: more than dishes"
    text = "menu: {name: a, soups: 3}\n"
    assert yaml_refusal(tmp_path, text, "--menu.dishes=2") == "FILE: menu.soups: more than dishes"


def test_a_flag_from_python_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--seats: unknown flag; did you mean --house.seats\?$"):
        settings_from(Restaurant, flags={"seats": "3"})


# from Python


def test_values_from_python_are_nested_dicts_or_sections() -> None:
    expected = restaurant(house=House(seats=3))
    assert validated(Restaurant, {"menu": {"name": "a"}, "house": {"seats": 3}}) == expected
    assert validated(Restaurant, {"menu": Menu(name="a"), "house": House(seats=3)}) == expected
    assert validated(Restaurant, expected.model_dump()) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "menu.name: is required (on the cover)"),
        ({"menu": {"name": 3}}, "menu.name: expected text, got 3"),
        ({"menu": House()}, "menu: expected name: value lines, got House("),
        ({"menu": {"name": "a", 3: 4}}, "menu.3: unknown field"),
        ({"menu": {"name": "a", "soups": 9}}, "menu.soups: more than dishes"),
    ],
)
def test_refusals_from_python_begin_with_the_dotted_name(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        validated(Restaurant, values)
    assert str(caught.value).startswith(message)


def test_values_given_are_not_changed() -> None:
    values: dict[str, Any] = {"menu": {"name": "a"}, "house": {"oven": None}}
    validated(Restaurant, values)
    assert values == {"menu": {"name": "a"}, "house": {"oven": None}}


def test_every_field_is_found_by_its_dotted_name() -> None:
    names = list(fields_of(Restaurant))
    assert names[:3] == ["menu", "menu.name", "menu.dishes"]
    assert {"house.oven.heat", "house.garden", "house.garden.lamps", "open_late"} < set(names)
    assert describe(fields_of(Restaurant)["menu.prices"]) == "a mapping such as {name: value}"
