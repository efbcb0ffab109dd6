"""Settings that cannot be used, and how that is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kitchen import Kitchen, flag_refusal, from_flags, saved, yaml_refusal
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import (
    describe,
    nearest,
    settings_from,
    validated,
)

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
