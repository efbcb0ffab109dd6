"""Flags: their spellings, their help, and words that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

import restaurant
from kitchen import Kitchen, flag_refusal, from_flags, parser, saved
from qk_toolkit.settings import fields_of, section_of


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


# flags of sections


@pytest.mark.parametrize("flag", ["--house.open-air-seats", "--house.seets", "--house.sea_ts"])
def test_an_unknown_flag_of_a_section_names_the_nearest(flag: str) -> None:
    told = flag.replace("-", "_").replace("__", "--", 1)
    message = restaurant.flag_refusal(flag, "3")
    assert message == f"{told}: unknown flag; did you mean --house.seats?"


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--dishes", "--menu.dishes"),
        ("--house.dishes", "--menu.dishes"),
        ("--fuel", "--house.oven.fuel"),
        ("--oven.fuel", "--house.oven.fuel"),
        ("--house.open-late", "--open_late"),
    ],
)
def test_a_flag_of_another_section_is_found(flag: str, meant: str) -> None:
    assert restaurant.flag_refusal(flag, "3").endswith(f": unknown flag; did you mean {meant}?")


@pytest.mark.parametrize("flag", ["--house", "--house.oven"])
def test_a_section_is_no_flag(flag: str) -> None:
    assert "unknown flag" in restaurant.flag_refusal(flag, "3")


def test_the_help_tells_the_fields_of_every_section_below_its_docstring() -> None:
    text = restaurant.parser().format_help()
    headings = [line for line in text.splitlines() if line and not line.startswith((" ", "usage"))]
    assert headings == [
        "options:",
        "menu – what is cooked:",
        "house – the rooms:",
        "house.oven – what bakes:",
        "house.garden:",
        "when:",
    ]
    for name, field in fields_of(restaurant.Restaurant).items():
        if section_of(field) is None:
            assert f"--{name} " in text
            assert (field.description or "?") in text


def test_the_help_tells_what_is_required_and_what_is_the_default() -> None:
    text = " ".join(restaurant.parser().format_help().split())
    assert "--menu.name TEXT on the cover [required]" in text
    assert "--menu.prices MAPPING by dish" in text
    assert "in winter [true]" in text
    assert "--house.garden none leave this out, whatever the file says [the default]" in text
