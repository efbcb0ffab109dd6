"""Command-line flags: one per field of the settings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.settings import (
    SEE_HELP,
    TRUTH_WORDS,
    base_type,
    fields_of,
    nearest,
    section_of,
)


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
            help="this help with all flags",
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
        options: dict[str, Any] = {"help": _help(name, field), "default": argparse.SUPPRESS}
        if base_type(field) is bool:
            added = _add_switch(groups[heading], name, **options)
        else:
            added = groups[heading].add_argument(f"--{name}", metavar=_metavar(field), **options)
        _hide(added, name, rare)


def _add_switch(group: argparse._ActionsContainer, name: str, **options: Any) -> argparse.Action:
    """Add a flag that needs no value: `--name`, `--no_name` or `--name false`."""
    return group.add_argument(f"--{name}", nargs="?", const="true", metavar="true|false", **options)


def add_switch(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add a switch that is no field of settings. `is_on` reads its value; it is off by default."""
    _add_switch(parser, name, help=text, default="false")


def is_on(flags: Mapping[str, str], name: str) -> bool:
    """Whether a switch of `add_switch` is on."""
    value = TRUTH_WORDS.get(flags[name].lower())
    if value is None:
        raise ConfigError(f"--{name}: expected true or false, got {in_short(flags[name])}")
    return value


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


def flags_of_places(
    verb: str, arguments: Sequence[str], places: Mapping[str, str], too_many: str
) -> list[str]:
    """The arguments with its flag before every place that they begin with.

    `places` has the flag of every place and its word in the usage, in their order. `too_many` is
    what to do with more places.
    """
    given = list(takewhile(lambda word: not word.startswith("-"), arguments))
    words = " ".join(places.values())
    if len(given) > len(places):
        raise ConfigError(f"{verb} takes {words}, got {len(given)} places; {too_many}")
    rest = [_underscored(word) for word in arguments[len(given) :]]
    found = []
    for place, (name, word) in zip(given, places.items(), strict=False):
        if any(other.partition("=")[0] == f"--{name}" for other in rest):
            raise ConfigError(f"--{name}: {word} is given twice; leave one out")
        found += [f"--{name}", place]
    return [*found, *rest]


@contextmanager
def named_as_given(arguments: Sequence[str], places: Mapping[str, str]) -> Iterator[None]:
    """Begin errors about places that were given without a flag with their word in the usage."""
    given = takewhile(lambda word: not word.startswith("-"), arguments)
    names = [(f"{name}: ", word) for _, (name, word) in zip(given, places.items(), strict=False)]
    try:
        yield
    except ConfigError as error:
        for name, word in names:
            if str(error).startswith(name):
                raise ConfigError(f"{word}: {str(error).removeprefix(name)}") from error
        raise


def parse_flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, str]:
    """Parse the arguments. A flag may be written with `-` or `_`, and a switch as `--no_NAME`."""
    words = _with_switches(parser, [_underscored(argument) for argument in arguments])
    known, unknown = parser.parse_known_args(words)
    for argument in unknown:
        if argument.startswith("--"):
            name = argument[2:].partition("=")[0]
            names = [flag[2:] for flag in parser._option_string_actions if flag.startswith("--")]
            raise ConfigError(f"--{name}: unknown flag{nearest(name, names, '--', SEE_HELP)}")
        raise ConfigError(
            f"{argument!r}: unexpected argument; put its flag before it, --flag {argument}"
        )
    return dict(vars(known))


def _with_switches(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The words with `--NAME=false` for `--no_NAME`, and no place as the value of a switch."""
    flags = parser._option_string_actions
    switches = {flag for flag, action in flags.items() if action.metavar == "true|false"}
    has_places = any(not action.option_strings for action in parser._actions)
    found = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        positive = f"--{word.removeprefix('--no_')}"
        if word in switches and has_places and following.lower() not in TRUTH_WORDS:
            found.append(f"{word}=true")
        else:
            found.append(f"{positive}=false" if positive in switches else word)
    return found


def _heading(name: str, section: type[BaseModel]) -> str:
    sentence = (section.__doc__ or "").partition(".")[0]
    return f"{name} – {sentence[:1].lower()}{sentence[1:]}" if sentence else name


def _add_none_flag(group: argparse._ArgumentGroup, name: str) -> argparse.Action:
    """Add a flag that gives an optional section, or removes one which the YAML file gives."""
    return group.add_argument(
        f"--{name}",
        nargs="?",
        const="{}",
        choices=["none", "{}"],
        type=str.lower,
        metavar="none",
        default=argparse.SUPPRESS,
        help="this section with its defaults; none: leave it out, also if the file has it",
    )


def _metavar(field: FieldInfo) -> str:
    base = base_type(field)
    if get_origin(base) is Literal:
        return "|".join(str(choice) for choice in get_args(base))
    names = {int: "N", float: "X", list: "LIST", dict: "MAPPING"}
    return names.get(get_origin(base) or base, "TEXT")


def _help(name: str, field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    if field.is_required():
        return f"{text} [required]"
    if field.default is None or field.default is False or field.default in ([], {}):
        return text
    return f"{text} [{f'on; off: --no-{name}' if field.default is True else field.default}]"


def _underscored(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"
