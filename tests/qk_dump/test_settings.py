"""Settings from flags and YAML, and how a breach is told."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, model_validator

from qk_dump.errors import ConfigError
from qk_dump.settings import (
    Indices,
    add_flags,
    describe,
    nearest,
    parse_flags,
    parse_indices,
    settings_from,
    validated,
)


class Kitchen(BaseModel):
    """One field of every kind."""

    model_config = ConfigDict(extra="forbid")

    cooks: int = Field(default=2, ge=1, description="people at the stove")
    heat: float = Field(default=0.5, gt=0, lt=1, description="share of full power, 50% by default")
    open_late: bool = Field(default=False, description="serve after ten")
    style: Literal["plain", "rich"] = Field(default="plain", description="of cooking")
    name: str = Field(default="corner", description="on the sign")
    cellar: str | None = Field(default=None, description="where the wine is")
    tables: Indices | None = Field(default=None, description="that are laid")
    seats: int | None = Field(default=None, ge=1, le=90, description="in the house")

    @model_validator(mode="after")
    def _room(self) -> Kitchen:
        if self.seats is not None and self.seats < self.cooks:
            raise ValueError("seats: fewer than cooks")
        return self


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="kitchen", allow_abbrev=False)
    add_flags(made, Kitchen)
    return made


def from_flags(*words: str, yaml_path: Path | None = None) -> Kitchen:
    return settings_from(Kitchen, yaml_path=yaml_path, flags=parse_flags(parser(), words))


def from_yaml(folder: Path, text: str | bytes, section: str | None = None) -> Kitchen:
    return settings_from(Kitchen, yaml_path=saved(folder, text), section=section)


def saved(folder: Path, text: str | bytes) -> Path:
    path = folder / "kitchen.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def flag_refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        from_flags(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def yaml_refusal(folder: Path, text: str | bytes, section: str | None = None) -> str:
    """The message of a refusal, which must begin with the file and fit a line."""
    with pytest.raises(ConfigError) as caught:
        from_yaml(folder, text, section)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'kitchen.yaml'}: ")
    assert "\n" not in message
    return message.removeprefix(f"{folder / 'kitchen.yaml'}: ")


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


# values of the wrong kind


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cooks: many", "cooks: expected an integer of at least 1, got 'many'"),
        ("cooks: '3'", "cooks: expected an integer of at least 1, got '3'"),
        ("cooks: 3.0", "cooks: expected an integer of at least 1, got 3.0"),
        ("cooks: true", "cooks: expected an integer of at least 1, got true"),
        ("cooks: null", "cooks: expected an integer of at least 1, got null"),
        ("cooks: [3]", "cooks: expected an integer of at least 1, got [3]"),
        ("heat: hot", "heat: expected a number above 0 and below 1, got 'hot'"),
        ("heat: false", "heat: expected a number above 0 and below 1, got false"),
        ("open_late: 1", "open_late: expected true or false, got 1"),
        ("open_late: 'true'", "open_late: expected true or false, got 'true'"),
        ("style: baroque", "style: expected one of plain, rich, got 'baroque'"),
        ("style: 1", "style: expected one of plain, rich, got 1"),
        ("name: 3", "name: expected text, got 3"),
        ("cellar: [a]", "cellar: expected text, got ['a']"),
        ("name: {a: 1}", "name: expected text, got {'a': 1}"),
    ],
)
def test_a_wrong_kind_of_value_is_told_with_what_was_expected(
    tmp_path: Path, line: str, message: str
) -> None:
    assert yaml_refusal(tmp_path, line) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cooks: 0", "cooks: expected an integer of at least 1, got 0"),
        ("heat: 0", "heat: expected a number above 0 and below 1, got 0"),
        ("heat: 1.0", "heat: expected a number above 0 and below 1, got 1.0"),
        ("heat: .nan", "heat: expected a number above 0 and below 1, got nan"),
        ("heat: .inf", "heat: expected a number above 0 and below 1, got inf"),
        ("seats: 91", "seats: expected an integer of at least 1 and of at most 90, got 91"),
    ],
)
def test_a_value_out_of_range_is_told_with_the_range(
    tmp_path: Path, line: str, message: str
) -> None:
    assert yaml_refusal(tmp_path, line) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cooks", "many"), "--cooks: expected an integer of at least 1, got 'many'"),
        (("--cooks", "-1"), "--cooks: expected an integer of at least 1, got -1"),
        (("--cooks", "2.5"), "--cooks: expected an integer of at least 1, got '2.5'"),
        (("--heat", "hot"), "--heat: expected a number above 0 and below 1, got 'hot'"),
        (("--heat", "nan"), "--heat: expected a number above 0 and below 1, got nan"),
        (("--open_late", "maybe"), "--open_late: expected true or false, got 'maybe'"),
        (("--style", "Rich"), "--style: expected one of plain, rich, got 'Rich'"),
    ],
)
def test_a_bad_flag_is_told_by_its_name(words: tuple[str, ...], message: str) -> None:
    assert flag_refusal(*words) == message


def test_a_bad_flag_is_blamed_and_not_the_yaml_it_overrides(tmp_path: Path) -> None:
    path = saved(tmp_path, "cooks: 3")
    with pytest.raises(ConfigError, match=r"^--cooks: "):
        from_flags("--cooks", "x", yaml_path=path)


def test_fields_that_contradict_each_other_are_refused_in_plain_words() -> None:
    assert flag_refusal("--cooks", "5", "--seats", "4") == "--seats: fewer than cooks"


def test_a_value_with_line_breaks_is_told_in_one_line(tmp_path: Path) -> None:
    assert "got 'a\\nb\\n'" in yaml_refusal(tmp_path, "cooks: |\n  a\n  b\n")


def test_values_from_python_are_checked_alike() -> None:
    with pytest.raises(ConfigError, match=r"^cooks: expected an integer of at least 1, got '3'$"):
        validated(Kitchen, {"cooks": "3"})
    with pytest.raises(ConfigError, match=r"^coks: unknown field; did you mean cooks"):
        validated(Kitchen, {"coks": 3})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cooks", "an integer of at least 1"),
        ("heat", "a number above 0 and below 1"),
        ("open_late", "true or false"),
        ("style", "one of plain, rich"),
        ("cellar", "text"),
        ("tables", "a list of integers such as 0-3,8"),
        ("seats", "an integer of at least 1 and of at most 90"),
    ],
)
def test_a_field_is_described_in_words(name: str, words: str) -> None:
    assert describe(Kitchen.model_fields[name]) == words


# files that cannot be used


@pytest.mark.parametrize("key", ["cokos", "Cooks", "cook-s"])
def test_an_unknown_key_names_the_nearest(tmp_path: Path, key: str) -> None:
    assert yaml_refusal(tmp_path, f"{key}: 3") == f"{key}: unknown field; did you mean cooks?"


@pytest.mark.parametrize("key", ["zzzz", "3", "2024-01-01"])
def test_a_key_like_none_of_ours_points_to_the_help(tmp_path: Path, key: str) -> None:
    assert yaml_refusal(tmp_path, f"{key}: 3").endswith("unknown field; --help lists them all")


def test_a_key_with_a_line_break_is_told_in_one_line(tmp_path: Path) -> None:
    assert "unknown field" in yaml_refusal(tmp_path, '"a\\nb": 1')


def test_a_key_given_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    message = yaml_refusal(tmp_path, "cooks: 3\nheat: 0.1\ncooks: 4\n")
    assert "'cooks' is given twice" in message
    assert "line 3" in message


def test_a_key_given_twice_under_the_section_is_refused(tmp_path: Path) -> None:
    text = "menu:\n  cooks: 3\n  cooks: 4\n"
    assert "'cooks' is given twice" in yaml_refusal(tmp_path, text, section="menu")


@pytest.mark.parametrize("text", ["- cooks\n", "cooks\n", "3\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert "expected 'name: value' lines" in yaml_refusal(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "cooks: [3\n",
        "cooks: 3\n  heat: 1\n",
        "\tcooks: 3",
        "cooks: 3\n---\ncooks: 4\n",
        "[1]: 3\n",
        "cooks: *nobody\n",
        "cooks: \x00",
        "cooks: !!int many\n",
        "name: 2024-13-45\n",
    ],
)
def test_what_is_no_yaml_is_refused(tmp_path: Path, text: str) -> None:
    yaml_refusal(tmp_path, text)


@pytest.mark.parametrize(
    "value", ["!!python/object/apply:os.mkdir [{}]", "!!python/name:os.getcwd", "!secret x"]
)
def test_yaml_never_makes_python_objects(tmp_path: Path, value: str) -> None:
    trace = tmp_path / "trace"
    message = yaml_refusal(tmp_path, f"name: {value.replace('{}', str(trace))}\n")
    assert "could not determine a constructor" in message
    assert not trace.exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.yaml"
    with pytest.raises(ConfigError, match="does not exist") as caught:
        settings_from(Kitchen, yaml_path=path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"name: \xff\xfe", b"\xff\xfen\x00"])
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, content: bytes) -> None:
    assert "cannot be read" in yaml_refusal(tmp_path, content)


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        settings_from(Kitchen, yaml_path=tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_closed_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, "cooks: 3")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read any file")
    with pytest.raises(ConfigError, match="cannot be read"):
        settings_from(Kitchen, yaml_path=path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("open-late", "; did you mean open_late?"),
        ("stile", "; did you mean style?"),
        ("q", "; --help lists them all"),
    ],
)
def test_the_nearest_name_is_offered_only_when_it_is_near(name: str, hint: str) -> None:
    assert nearest(name, Kitchen.model_fields) == hint
