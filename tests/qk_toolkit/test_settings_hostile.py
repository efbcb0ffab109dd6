"""Settings that are meant to break the program: each is one line, and none takes long."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kitchen import Kitchen, flag_refusal, from_yaml, yaml_refusal
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest, parse_indices, settings_from, validated
from restaurant import Restaurant
from restaurant import flag_refusal as restaurant_flag_refusal
from restaurant import yaml_refusal as restaurant_yaml_refusal


def laughs(levels: int = 12) -> str:
    """A list that is small in the file and has 9 to the power of `levels` members."""
    lines = ["a0: &a0 [lol]"]
    for level in range(levels):
        lines.append(f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 9)}]")
    return "\n".join([*lines, f"cooks: *a{levels}"])


GARBLED = {
    "nested lists": ("cooks: " + "[" * 5000 + "]" * 5000, "line 1: is nested more than 50 deep"),
    "open lists": ("[" * 100_000, "line 1: is nested more than 50 deep"),
    "nested mappings": ("cooks: " + "{a: " * 5000, "line 1: is nested more than 50 deep"),
    "nested blocks": ("- " * 5000, "line 1: is nested more than 50 deep"),
    "a list in itself": ("cooks: &a [*a]", "line 1: '*a' stands inside what it stands for"),
    "a mapping in itself": ("cooks: &a {b: *a}", "line 1: '*a' stands inside what it stands for"),
    "two in each other": ("cooks: &a [&b [*a, *b]]", "line 1: '*a' stands inside"),
    "billion laughs": (laughs(), "holds more than 20,000 values"),
    "many values": ("cooks: [" + "1," * 20_001 + "]", "holds more than 20,000 values"),
    "a large file": ("# " + "x" * 1_000_000, "is larger than 1,000,000 bytes"),
    "timestamp": ("cooks: !!timestamp x", "is not valid YAML"),
    "bool": ("cooks: !!bool x", "is not valid YAML"),
    "int": ('cooks: !!int ""', "is not valid YAML"),
    "float": ('heat: !!float ""', "is not valid YAML"),
    "a list as key": ("? [a]\n: b", "is not valid YAML"),
    "NUL": (b"cooks: \0", "is not valid YAML"),
    "not UTF-8": (b"name: \xe9", "cannot be read"),
    "UTF-16": ("cooks: 3".encode("utf-16"), "cannot be read"),
    "5,000 digits": ("cooks: " + "9" * 5000, "is not valid YAML"),
}


@pytest.mark.parametrize(("text", "said"), GARBLED.values(), ids=GARBLED)
def test_garbled_yaml_is_one_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    message = yaml_refusal(tmp_path, text)
    assert said in message
    assert len(message) < 300


def test_anchors_that_repeat_a_value_are_fine(tmp_path: Path) -> None:
    found = from_yaml(tmp_path, "name: &a corner\ncellar: *a\ntables: &b [1, 2]\n")
    assert (found.name, found.cellar, found.tables) == ("corner", "corner", [1, 2])


@pytest.mark.parametrize("digits", [20, 30, 300])
@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_beyond_64_bits_are_refused(tmp_path: Path, digits: int, sign: str) -> None:
    number = sign + "9" * digits
    said = "cooks: expected an integer of at least 1, got "
    for message in (yaml_refusal(tmp_path, f"cooks: {number}"), flag_refusal("--cooks", number)):
        assert said in message
        assert "which does not fit 64 bits" in message
    assert "does not fit 64 bits" in yaml_refusal(tmp_path, f"heat: {number}")
    assert "does not fit 64 bits" in yaml_refusal(tmp_path, f"tables: [1, {number}]")
    assert "does not fit 64 bits" in yaml_refusal(tmp_path, "cooks: 0x" + "f" * 10_000)


def test_nested_values_are_looked_through(tmp_path: Path) -> None:
    named = "menu: {name: a, prices: %s}"
    for prices, said in (
        ("{a: {b: [1" + "0" * 29 + "]}}", "does not fit 64 bits"),
        ('{a: ["x\\0"]}', "holds the character NUL"),
        ("&a {b: *a}", "stands inside what it stands for"),
    ):
        message = restaurant_yaml_refusal(tmp_path, named % prices)
        assert said in message
        assert message.startswith("FILE: ")
        assert said in restaurant_flag_refusal("--menu.name", "a", "--menu.prices", prices)


def test_values_of_a_program_are_looked_through() -> None:
    recursive: dict[str, Any] = {}
    recursive["a"] = recursive
    with pytest.raises(ConfigError, match=r"menu\.prices: is nested more than 50 deep"):
        validated(Restaurant, {"menu": {"name": "a", "prices": recursive}})
    many: Any = "lol"
    for _ in range(40):
        many = [many] * 9
    with pytest.raises(ConfigError, match="cooks: expected an integer of at least 1, got"):
        validated(Kitchen, {"cooks": many})
    with pytest.raises(ConfigError, match="name: holds the character NUL"):
        validated(Kitchen, {"name": Path("a\0b")})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"a\\0b"', "holds the character NUL, which no name or path has"),
        ('"\\ud800"', "holds '\\ud800', which no name or path has"),
    ],
)
def test_text_that_no_path_can_have_is_refused(tmp_path: Path, text: str, said: str) -> None:
    for field in ("name", "cellar"):
        assert yaml_refusal(tmp_path, f"{field}: {text}") == f"{field}: {said}"


def test_a_path_that_a_field_takes_in_utf8_only_is_told_so() -> None:
    message = restaurant_flag_refusal("--menu.name", "caf\udce9")
    assert message == "--menu.name: expected text in UTF-8, got 'caf\\udce9'"


def test_a_path_that_is_not_utf8_is_kept() -> None:
    assert validated(Kitchen, {"name": "caf\udce9"}).name == "caf\udce9"


def test_flags_of_ten_megabytes_are_told_in_short() -> None:
    long = "x" * 10_000_000
    for words in (
        ("--cooks", long),
        ("--style", long),
        ("--tables", long),
        ("--tables", "1," * 5_000_000),
        ("--tables", "0-99999," * 1_000_000),
        (f"--{long}", "3"),
        (long,),
    ):
        assert len(flag_refusal(*words)) < 3_100
    for words in (("--menu.prices", long), ("--menu.prices", f"{{a: {long}}}")):
        assert len(restaurant_flag_refusal("--menu.name", "a", *words)) < 3_100


def test_many_indices_are_counted_before_they_are_made() -> None:
    assert parse_indices("0-9999," * 9 + "5") == list(range(10_000))
    with pytest.raises(ValueError, match="more than 100,000 numbers"):
        parse_indices("0-99999," * 1_000 + "5")


def test_a_long_name_is_near_to_none() -> None:
    assert nearest("cooks" * 1_000_000, ["cooks"]) == "; --help lists them all"


def test_a_pipe_can_bring_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "kitchen.yaml"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("cooks: 7",))
    writer.start()
    assert settings_from(Kitchen, yaml_path=path).cooks == 7
    writer.join()


@pytest.mark.parametrize("path", ["/dev/zero", "a\0b", "\ud800", "/"])
def test_a_file_that_cannot_hold_settings_is_refused(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from(Kitchen, yaml_path=Path(path))
    assert "\n" not in str(caught.value)


def test_a_name_given_as_a_mapping_key_of_any_kind_is_unknown(tmp_path: Path) -> None:
    for key in ("2001-01-01", "~", "3", "!!binary aGk="):
        assert "unknown field" in yaml_refusal(tmp_path, f"{key}: 3")
