"""Settings of a command: declared once as a pydantic model, filled from flags and YAML.

Flag > YAML > default. A field's type, default, check and help live in its declaration; the flags
and every message are made from it. Both stages of the toolkit use this file.
"""

from __future__ import annotations

import argparse
import difflib
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, NonNegativeInt, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from qk_dump.errors import ConfigError

_MOST_INDICES = 100_000

Settings = TypeVar("Settings", bound=BaseModel)


def parse_indices(value: object) -> object:
    """Turn `"0-3,8"` (or one integer) into a sorted list; anything else is checked as it is."""
    if isinstance(value, list) and all(type(item) is int for item in value):
        return sorted(set(value))
    if isinstance(value, bool) or not isinstance(value, int | str):
        return value
    found: set[int] = set()
    for part in str(value).split(","):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isascii() and end.isdigit() for end in ends):
            raise ValueError(f"cannot read {part!r}")
        first, last = int(ends[0]), int(ends[-1])
        if not first <= last < _MOST_INDICES:
            raise ValueError(f"cannot read {part!r}")
        found.update(range(first, last + 1))
    return sorted(found)


Indices = Annotated[list[NonNegativeInt], BeforeValidator(parse_indices)]


def settings_from(
    model: type[Settings],
    *,
    yaml_path: Path | None = None,
    section: str | None = None,
    flags: Mapping[str, str] | None = None,
) -> Settings:
    """Build the settings from a YAML file (flat, or under `section`) and flags given as text."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if yaml_path is not None:
        for key, value in _load_yaml(yaml_path, section).items():
            _refuse_unknown(model, key, f"{yaml_path}: {key}")
            values[key] = value
            sources[key] = f"{yaml_path}: {key}"
    for key, text in (flags or {}).items():
        values[key] = _from_text(model.model_fields[key], text)
        sources[key] = f"--{key}"
    return validated(model, values, sources)


def validated(
    model: type[Settings], values: Mapping[str, Any], sources: Mapping[str, str] | None = None
) -> Settings:
    """Check values strictly (a text is no number) and tell the first breach in one line."""
    sources = sources or {}
    for key in values:
        _refuse_unknown(model, key, sources.get(key, key))
    try:
        return model.model_validate(dict(values), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        if not problem["loc"]:  # a check over several fields, which names the first of them
            key, _, rest = _plain(problem["msg"]).partition(": ")
            raise ConfigError(f"{sources.get(key, key)}: {rest}") from error
        key = str(problem["loc"][0])
        expected = describe(model.model_fields[key])
        raise ConfigError(
            f"{sources.get(key, key)}: expected {expected}, got {_as_yaml(values[key])}"
        ) from error


def add_flags(parser: argparse.ArgumentParser, model: type[BaseModel]) -> None:
    """Give the parser one flag per field, with the field's own help, below its title."""
    groups: dict[str | None, argparse._ArgumentGroup] = {}
    for name, field in model.model_fields.items():
        if field.title not in groups:
            groups[field.title] = parser.add_argument_group(field.title)
        options: dict[str, Any] = {"help": _help(field), "metavar": _metavar(field)}
        if _base_type(field) is bool:
            options |= {"nargs": "?", "const": "true"}
        groups[field.title].add_argument(f"--{name}", default=argparse.SUPPRESS, **options)


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


def describe(field: FieldInfo) -> str:
    """What a field accepts, in words: 'an integer of at least 1'."""
    base = _base_type(field)
    if get_origin(base) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(base))
    if base is bool:
        return "true or false"
    if base is str:
        return "text"
    if get_origin(base) is list:
        return "a list of integers such as 0-3,8"
    return ("an integer" if base is int else "a number") + _bounds(field)


def _bounds(field: FieldInfo) -> str:
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    found = [
        f"{phrase} {getattr(rule, name)}"
        for name, phrase in words.items()
        for rule in field.metadata
        if getattr(rule, name, None) is not None
    ]
    return " " + " and ".join(found) if found else ""


def _base_type(field: FieldInfo) -> Any:
    annotation = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def _metavar(field: FieldInfo) -> str:
    base = _base_type(field)
    if get_origin(base) is Literal:
        return "|".join(str(choice) for choice in get_args(base))
    if get_origin(base) is list:
        return "LIST"
    return {bool: "true|false", int: "N", float: "X"}.get(base, "TEXT")


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    if field.default in (None, PydanticUndefined) or field.default is False:
        return text
    return f"{text} [{field.default}]"


def _from_text(field: FieldInfo, text: str) -> object:
    """Read a flag's text as its field's type; what does not fit stays text and is refused later."""
    base = _base_type(field)
    if text.lower() in ("none", "null") and field.default is None:
        return None
    if base is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
            text.lower(), text
        )
    if base in (int, float):
        try:
            return base(text)
        except ValueError:
            return text
    return text


class FlagParser(argparse.ArgumentParser):
    """A parser whose complaints are one line and end like every other usage error."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise ConfigError(message.removeprefix("argument "))


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error and `1e-3` is the number it looks like."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{key}' is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"),
    list("-+.0123456789"),
)


def _load_yaml(path: Path, section: str | None) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is not valid YAML: {_yaml_problem(error)}") from error
    if content is None:
        return {}
    if isinstance(content, dict) and section is not None and section in content:
        if len(content) > 1:
            others = ", ".join(str(key) for key in content if key != section)
            raise ConfigError(f"{path}: {section}: must hold all fields, but beside it: {others}")
        content = {} if content[section] is None else content[section]
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected 'name: value' lines, got {type(content).__name__}")
    return {_plain(str(key)): value for key, value in content.items()}


def _yaml_problem(error: Exception) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return _plain(str(error))
    problem = str(error.problem)
    if "'\\t'" in problem:
        problem = "indent with spaces, not tabs"
    return _plain(f"line {error.problem_mark.line + 1}: {problem}")


def _as_yaml(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def _refuse_unknown(model: type[BaseModel], key: str, source: str) -> None:
    if key not in model.model_fields:
        raise ConfigError(f"{source}: unknown field{nearest(key, model.model_fields)}")


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """A hint to append to 'unknown …': the closest known name, or where to find them all."""
    close = difflib.get_close_matches(name.replace("-", "_"), list(names), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{close[0]}?" if close else "; --help lists them all"


def _underscored(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _plain(message: str) -> str:
    return " ".join(message.removeprefix("Value error, ").split())
