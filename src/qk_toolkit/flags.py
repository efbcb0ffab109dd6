"""Flags of a command: one per field of its settings, and how they are read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import base_type, fields_of, nearest, section_of


def add_flags(parser: argparse.ArgumentParser, model: type[BaseModel]) -> None:
    """Give the parser one flag per field, with the field's own help.

    The fields of a section stand below what the section's docstring says, others below their title.
    """
    groups: dict[str | None, argparse._ArgumentGroup] = {}
    for name, field in fields_of(model).items():
        section = section_of(field)
        if section is not None:
            groups[name] = parser.add_argument_group(_heading(name, section))
            if field.default is None:
                _add_none_flag(groups[name], name)
            continue
        heading = name.rpartition(".")[0] or field.title
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        options: dict[str, Any] = {"help": _help(field), "metavar": _metavar(field)}
        if base_type(field) is bool:
            options |= {"nargs": "?", "const": "true"}
        groups[heading].add_argument(f"--{name}", default=argparse.SUPPRESS, **options)


def parse_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, str]:
    """Parse, taking dashes and underscores alike, and name the nearest flag when one is unknown."""
    known, unknown = parser.parse_known_args([_underscored(word) for word in arguments])
    for word in unknown:
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            names = [flag[2:] for flag in parser._option_string_actions if flag.startswith("--")]
            raise ConfigError(f"--{name}: unknown flag{nearest(name, names, '--')}")
        raise ConfigError(f"{word!r}: unexpected argument; put its flag before it, --flag {word}")
    return dict(vars(known))


def _heading(name: str, section: type[BaseModel]) -> str:
    said = (section.__doc__ or "").partition(".")[0]
    return f"{name} – {said[:1].lower()}{said[1:]}" if said else name


def _add_none_flag(group: argparse._ArgumentGroup, name: str) -> None:
    """A flag that takes back an optional section which the YAML file gives."""
    group.add_argument(
        f"--{name}",
        choices=["none"],
        type=str.lower,
        metavar="none",
        default=argparse.SUPPRESS,
        help="leave this out, whatever the file says [the default]",
    )


def _metavar(field: FieldInfo) -> str:
    base = base_type(field)
    if get_origin(base) is Literal:
        return "|".join(str(choice) for choice in get_args(base))
    names = {bool: "true|false", int: "N", float: "X", list: "LIST", dict: "MAPPING"}
    return names.get(get_origin(base) or base, "TEXT")


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    if field.is_required():
        return f"{text} [required]"
    if field.default is None or field.default is False:
        return text
    return f"{text} [{'true' if field.default is True else field.default}]"


def _underscored(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"
