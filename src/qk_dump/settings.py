"""Settings of a command: declared once as a pydantic model, filled from flags and YAML.

Flag > YAML > default, field by field. A field's type, default, check and help live in its
declaration; the flags and every message are made from it. A field that is itself a model is a
section: a mapping in YAML, `section.field` in flags and messages. Both stages use this file.
"""

from __future__ import annotations

import difflib
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, NonNegativeInt, ValidationError
from pydantic.fields import FieldInfo

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
    given = flags or {}
    values = _load_yaml(yaml_path, section) if yaml_path is not None else {}
    fields = fields_of(model)
    for name in sorted(given):  # a section's own flag comes before the flags inside it
        if name not in fields:
            raise ConfigError(f"--{name}: unknown flag{nearest(name, fields, '--')}")
        _place(values, name.split("."), _from_text(fields[name], given[name], name))

    def told(name: str) -> str:
        in_file = yaml_path is not None and name not in given
        return f"{yaml_path}: {name}" if in_file else f"--{name}"

    return validated(model, values, told)


def validated(
    model: type[Settings], values: Mapping[str, Any], told: Callable[[str], str] = str
) -> Settings:
    """Check values strictly (a text is no number) and tell the first breach in one line.

    `told` says where a field was given, so that a message begins with its file or its flag.
    """
    shaped = _shaped(model, values, fields_of(model), told)
    try:
        return model.model_validate(shaped, strict=True)
    except ValidationError as error:
        raise ConfigError(_breach(error, shaped, fields_of(model), told)) from error


def fields_of(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Every field by its dotted name, each section just before what it holds."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        found[prefix + name] = field
        section = section_of(field)
        if section is not None:
            found |= fields_of(section, f"{prefix}{name}.")
    return found


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a section, None for any other field."""
    base = base_type(field)
    return base if isinstance(base, type) and issubclass(base, BaseModel) else None


def base_type(field: FieldInfo) -> Any:
    """A field's type without `| None` and without its checks."""
    annotation = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def describe(field: FieldInfo) -> str:
    """What a field accepts, in words: 'an integer of at least 1'."""
    base = base_type(field)
    if get_origin(base) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(base))
    if base is bool:
        return "true or false"
    if base is str:
        return "text"
    if get_origin(base) is list:
        return "a list of integers such as 0-3,8"
    if get_origin(base) is dict:
        return "a mapping such as {name: value}"
    return ("an integer" if base is int else "a number") + _bounds(field)


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """A hint to append to 'unknown …': the closest known name, or where to find them all.

    The same name in another section is closer than any other name.
    """
    wanted, known = name.replace("-", "_"), list(names)
    close = [other for other in known if _own_name(other) == _own_name(wanted)]
    close = close or difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
    if not close:
        return "; --help lists them all"
    return f"; did you mean {' or '.join(prefix + other for other in close)}?"


def _own_name(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def _shaped(
    model: type[BaseModel],
    values: Mapping[str, Any],
    fields: Mapping[str, FieldInfo],
    told: Callable[[str], str],
    prefix: str = "",
) -> dict[str, Any]:
    """The values with a mapping for every section; refuses names and sections that are none."""
    shaped = {_plain(str(key)): _text_of_path(value) for key, value in values.items()}
    for key in shaped:
        if key not in model.model_fields:
            hint = _suggestion(key, model, fields)
            raise ConfigError(f"{told(prefix + key)}: unknown field{hint}")
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is None or (name not in shaped and not field.is_required()):
            continue
        inner = shaped.get(name)
        if isinstance(inner, section) or (inner is None and field.default is None):
            continue
        if inner is not None and not isinstance(inner, Mapping):
            source = told(prefix + name)
            raise ConfigError(f"{source}: expected name: value lines, got {_as_yaml(inner)}")
        shaped[name] = _shaped(section, inner or {}, fields, told, f"{prefix}{name}.")
    return shaped


def _text_of_path(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _suggestion(key: str, model: type[BaseModel], fields: Iterable[str]) -> str:
    name = key.replace("-", "_")
    if name not in model.model_fields:
        elsewhere = [other for other in fields if _own_name(other) == name]
        if elsewhere:
            return nearest(name, elsewhere)
    return nearest(name, model.model_fields)


def _breach(
    error: ValidationError,
    values: Mapping[str, Any],
    fields: Mapping[str, FieldInfo],
    told: Callable[[str], str],
) -> str:
    """The first problem of a validation, by the dotted name of its field."""
    problem = error.errors()[0]
    path: list[str] = []
    value: Any = values
    for part in problem["loc"]:
        path.append(str(part))
        field = fields[".".join(path)]
        if problem["type"] == "missing" and len(path) == len(problem["loc"]):
            why = f" ({field.description})" if field.description else ""
            return f"{told('.'.join(path))}: is required{why}"
        value = value[part]
        if section_of(field) is None:
            return f"{told('.'.join(path))}: expected {describe(field)}, got {_as_yaml(value)}"
    # a check over several fields of a section, which names the first of them
    key, _, rest = _plain(problem["msg"]).partition(": ")
    return f"{told('.'.join([*path, key]))}: {rest}"


def _place(values: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Put a flag's value into its section; what should be one and is not is refused later."""
    for name in path[:-1]:
        inner = values.get(name)
        if inner is not None and not isinstance(inner, dict):
            return
        values[name] = dict(inner or {})
        values = values[name]
    values[path[-1]] = value


def _bounds(field: FieldInfo) -> str:
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    found = [
        f"{phrase} {getattr(rule, name)}"
        for name, phrase in words.items()
        for rule in field.metadata
        if getattr(rule, name, None) is not None
    ]
    return " " + " and ".join(found) if found else ""


def _from_text(field: FieldInfo, text: str, name: str) -> object:
    """Read a flag's text as its field's type; what does not fit stays text and is refused later."""
    base = base_type(field)
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
    if get_origin(base) is dict:
        try:
            return yaml.load(text, _StrictLoader)  # noqa: S506
        except (yaml.YAMLError, TypeError, ValueError) as error:
            raise ConfigError(f"--{name}: is not valid YAML: {_yaml_problem(error)}") from error
    return text


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
    return content


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


def _plain(message: str) -> str:
    return " ".join(message.removeprefix("Value error, ").split())
