"""Command-line flags: one per field of the settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import SEE_HELP, base_type, fields_of, nearest, section_of


def add_flags(parser: argparse.ArgumentParser, model: type[BaseModel]) -> None:
    """Give the parser one flag per field, with the help text of the field.

    In the help, a section is headed by the first sentence of its docstring. Other fields are headed
    by their title. A class variable `rare_flags` names fields and sections that only `--help_all`
    shows.
    """
    groups: dict[str | None, argparse._ArgumentGroup] = {}
    rare = set(getattr(model, "rare_flags", ()))
    if rare:
        parser.add_argument(
            "--help_all",
            action=_HelpAll,
            nargs=0,
            default=argparse.SUPPRESS,
            help="show rare flags too, and exit",
        )
    for name, field in fields_of(model).items():
        section = section_of(field)
        if section is not None:
            groups[name] = parser.add_argument_group(_heading(name, section))
            if field.default is None:
                _hide(_add_none_flag(groups[name], name), name, rare)
            continue
        heading = name.rpartition(".")[0] or field.title
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        options: dict[str, Any] = {"help": _help(field), "metavar": _metavar(field)}
        if base_type(field) is bool:
            options |= {"nargs": "?", "const": "true"}
        added = groups[heading].add_argument(f"--{name}", default=argparse.SUPPRESS, **options)
        _hide(added, name, rare)


class _HelpAll(argparse.Action):
    """Prints the help with the rare flags."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> None:
        for action in parser._actions:
            action.help = getattr(action, "rare_help", action.help)
        parser.print_help()
        parser.exit()


def _hide(action: argparse.Action, name: str, rare: set[str]) -> None:
    """Keep the help of a rare flag, or of a flag in a rare section, for `--help_all`."""
    if not rare.isdisjoint((name, name.rpartition(".")[0])):
        action.rare_help, action.help = action.help, argparse.SUPPRESS  # type: ignore[attr-defined]


def parse_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, str]:
    """Parse the arguments. A flag may be written with `-` or `_`."""
    known, unknown = parser.parse_known_args([_underscored(argument) for argument in arguments])
    for argument in unknown:
        if argument.startswith("--"):
            name = argument[2:].partition("=")[0]
            names = [flag[2:] for flag in parser._option_string_actions if flag.startswith("--")]
            raise ConfigError(f"--{name}: unknown flag{nearest(name, names, '--', SEE_HELP)}")
        raise ConfigError(
            f"{argument!r}: unexpected argument; put its flag before it, --flag {argument}"
        )
    return dict(vars(known))


def _heading(name: str, section: type[BaseModel]) -> str:
    sentence = (section.__doc__ or "").partition(".")[0]
    return f"{name} – {sentence[:1].lower()}{sentence[1:]}" if sentence else name


def _add_none_flag(group: argparse._ArgumentGroup, name: str) -> argparse.Action:
    """Add a flag that removes an optional section which the YAML file gives."""
    return group.add_argument(
        f"--{name}",
        choices=["none"],
        type=str.lower,
        metavar="none",
        default=argparse.SUPPRESS,
        help="leave this section out, also if the file has it [the default]",
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
    if field.default is None or field.default is False or field.default in ([], {}):
        return text
    return f"{text} [{'true' if field.default is True else field.default}]"


def _underscored(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"
