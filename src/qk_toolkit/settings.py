"""Settings of a command: a pydantic model that is filled from flags and YAML.

For each field a flag overrides YAML, and YAML overrides the default. Flags, help and messages are
made from the declaration of the field. A field that is itself a model is a section: a mapping in
YAML, `section.field` in flags and messages.
"""

from __future__ import annotations

import difflib
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, ValidationError
from pydantic.fields import FieldInfo

from qk_toolkit.errors import ConfigError, in_short
from qk_toolkit.files import user_path

_MOST_INDICES = 100_000
_MAX_NAME = 200  # characters of an unknown name; no similar name is searched for longer ones
_LEAST_SIMILARITY = 0.5  # of the name that a message suggests
_MOST_LONGER = 2  # names that begin with the unknown one and are suggested
_INT64 = range(-(2**63), 2**63)

Settings = TypeVar("Settings", bound=BaseModel)


def parse_indices(value: object) -> object:
    """Turn `"0-3,8"` or one integer into a sorted list; return any other value unchanged."""
    if isinstance(value, list) and all(type(item) is int for item in value):
        return sorted(set(value))
    if isinstance(value, bool) or not isinstance(value, int | str):
        return value
    return index_list(str(value))


def split_names(value: object) -> object:
    """Turn `"a,b"` into a list of names; return any other value unchanged."""
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def index_list(text: str) -> list[int]:
    """The sorted numbers of `"0-3,8"`."""
    found: set[int] = set()
    for part in text.split(","):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isascii() and end.isdigit() for end in ends):
            raise ValueError(f"cannot read {part!r}")
        first, last = int(ends[0]), int(ends[-1])
        if not first <= last < _MOST_INDICES:
            raise ValueError(f"cannot read {part!r}")
        found.update(range(first, last + 1))
    return sorted(found)


TRUTH_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
SEE_HELP = "; --help lists them all"
Indices = Annotated[list[NonNegativeInt], BeforeValidator(parse_indices)]
Names = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(split_names)]


def settings_from(
    model: type[Settings],
    *,
    yaml_path: Path | None = None,
    section: str | None = None,
    flags: Mapping[str, str] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Settings:
    """Build the settings from a YAML file (flat, or under `section`) and flags given as text.

    `note` is called with a line that lists the settings without effect.
    """
    given = flags or {}
    values = load_yaml(user_path(yaml_path), section) if yaml_path is not None else {}
    place_flags(values, model, given)

    def source_of(name: str) -> str:
        in_file = yaml_path is not None and name not in given
        return f"{yaml_path}: {name}" if in_file else f"--{name}"

    return validated(model, values, source_of, lambda text: note(f"{yaml_path}: {text}"))


def place_flags(
    values: dict[str, Any], model: type[BaseModel], flags: Mapping[str, str]
) -> dict[str, Any]:
    """Put flags, given as text, into the values of the settings, with the types of their fields."""
    fields = fields_of(model)
    for name in sorted(flags):  # the flag of a section comes before the flags of its fields
        if name not in fields:
            raise ConfigError(f"--{name}: unknown flag{nearest(name, fields, '--', SEE_HELP)}")
        _place(values, name.split("."), _from_text(fields[name], flags[name], name))
    return values


def validated(
    model: type[Settings],
    values: Mapping[str, Any],
    source_of: Callable[[str], str] = str,
    note: Callable[[str], None] = lambda text: None,
) -> Settings:
    """Check the types strictly ("3" is not a number) and raise the first problem as one line.

    `source_of` gives the beginning of the message: the file or the flag of a field. `note` is
    called with a line that lists settings without effect. A section declares these in a class
    variable `without_effect`: field name → what is used instead. A class variable `fixed_values`
    declares fields that files may contain with one value only: field name → this value. If there
    are such fields, the line ends with the class variable `foreign_note` of `model`.
    """
    ignored: dict[str, str] = {}
    prepared = _prepared(model, values, fields_of(model), source_of, ignored)
    try:
        found = model.model_validate(prepared, strict=True)
    except ValidationError as error:
        raise ConfigError(_problem(error, prepared, fields_of(model), source_of)) from error
    if ignored:
        listed = "; ".join(f"{name} ({what})" for name, what in ignored.items() if what)
        parts = [f"these settings have no effect: {listed}"] if listed else []
        note(". ".join(filter(None, [*parts, getattr(model, "foreign_note", "")])))
    return found


def fields_of(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Every field by its dotted name; a section comes just before its fields."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        found[prefix + name] = field
        section = section_of(field)
        if section is not None:
            found |= fields_of(section, f"{prefix}{name}.")
    return found


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a section; None for any other field."""
    base = base_type(field)
    return base if isinstance(base, type) and issubclass(base, BaseModel) else None


def base_type(field: FieldInfo) -> Any:
    """The type of a field without `| None` and without its constraints."""
    annotation = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def describe(field: FieldInfo) -> str:
    """A text for the values that a field accepts: 'an integer of at least 1'."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    if get_origin(field.annotation) in (Union, types.UnionType) and len(kinds) > 1:
        return " or ".join(describe(FieldInfo.from_annotation(kind)) for kind in kinds)
    base = base_type(field)
    if get_origin(base) is Literal:
        choices = [str(choice) for choice in get_args(base)]
        return ("one of " if len(choices) > 1 else "") + ", ".join(choices)
    if base is bool:
        return "true or false"
    if base is str:
        return "text"
    if get_origin(base) is list:
        numbers = get_args(base)[0] is NonNegativeInt
        return "a list of integers such as 0-3,8" if numbers else "a list of names such as a,b"
    if get_origin(base) is dict:
        return "a mapping such as {name: value}"
    return ("an integer" if base is int else "a number") + _bounds(field)


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes` merged in, also inside nested mappings."""
    result = dict(values)
    for name, change in changes.items():
        old = result.get(name)
        nested = isinstance(old, Mapping) and isinstance(change, Mapping)
        result[name] = merged(old, change) if nested else change  # type: ignore[arg-type]
    return result


def nearest(name: str, names: Iterable[str], prefix: str = "", otherwise: str = "") -> str:
    """A hint to append to 'unknown …': the most similar known name, or `otherwise`.

    The same name in another section comes first, then one or two names that begin with it.
    """
    if len(name) > _MAX_NAME:
        return otherwise
    wanted, known = name.replace("-", "_"), list(names)
    close = [other for other in known if _field_name(other) == _field_name(wanted)]
    longer = [other for other in known if other.startswith(wanted)]
    if not close and len(longer) <= _MOST_LONGER:
        close = longer
    close = close or difflib.get_close_matches(wanted, known, 1, _LEAST_SIMILARITY)
    if not close:
        return otherwise
    return f"; did you mean {' or '.join(prefix + other for other in close)}?"


def _field_name(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def _prepared(
    model: type[BaseModel],
    values: Mapping[str, Any],
    fields: Mapping[str, FieldInfo],
    source_of: Callable[[str], str],
    ignored: dict[str, str],
    prefix: str = "",
) -> dict[str, Any]:
    """The values with one mapping per section. Raises for unknown names and invalid sections.

    Fields without effect are moved to `ignored`, with what is used instead, which is empty for
    fields with a fixed value.
    """
    prepared = {
        _plain(str(key)): os.fspath(value) if isinstance(value, os.PathLike) else value
        for key, value in values.items()
    }
    for name, instead in getattr(model, "without_effect", {}).items():
        if name in prepared:
            del prepared[name]
            ignored[prefix + name] = instead
    for name, allowed in getattr(model, "fixed_values", {}).items():
        if name not in prepared:
            continue
        value = prepared.pop(name)
        ignored[prefix + name] = ""
        if value != allowed:
            source = source_of(prefix + name)
            raise ConfigError(f"{source}: expected {allowed}, got {in_short(value)}")
    for key in prepared:
        if key not in model.model_fields:
            named = key.replace("-", "_")
            elsewhere = [name for name in fields if _field_name(name) == named]
            own = named in model.model_fields or not elsewhere
            hint = nearest(key, model.model_fields if own else elsewhere)
            raise ConfigError(f"{source_of(prefix + key)}: unknown field{hint}")
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is None and name in prepared:
            _refuse_invalid(prepared[name], source_of(prefix + name), field)
        if section is None or (name not in prepared and not field.is_required()):
            continue
        inner = prepared.get(name)
        if isinstance(inner, section) or (inner is None and field.default is None):
            continue
        if inner is not None and not isinstance(inner, Mapping):
            source = source_of(prefix + name)
            raise ConfigError(f"{source}: expected name: value lines, got {in_short(inner)}")
        inner_prefix = f"{prefix}{name}."
        prepared[name] = _prepared(section, inner or {}, fields, source_of, ignored, inner_prefix)
    return prepared


def _refuse_invalid(value: object, source: str, field: FieldInfo) -> None:
    """Refuse text that no path can have, and integers beyond 64 bits, which pydantic accepts."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, int) and one not in _INT64:
            raise ConfigError(
                f"{source}: expected {describe(field)}, got {in_short(value)}, "
                "which does not fit 64 bits"
            )
        if not isinstance(one, str):
            continue
        invalid = "the character NUL" if "\0" in one else ""
        try:
            os.fsencode(one)
        except UnicodeEncodeError as error:
            invalid = repr(one[error.start])
        if invalid:
            raise ConfigError(f"{source}: holds {invalid}, which is invalid in a name or path")


def _problem(
    error: ValidationError,
    values: Mapping[str, Any],
    fields: Mapping[str, FieldInfo],
    source_of: Callable[[str], str],
) -> str:
    """The message for the first problem of a validation."""
    problem = error.errors()[0]
    path: list[str] = []
    value: Any = values
    for part in problem["loc"]:
        path.append(str(part))
        field = fields[".".join(path)]
        if problem["type"] == "missing" and len(path) == len(problem["loc"]):
            meaning = f" ({field.description})" if field.description else ""
            return f"{source_of('.'.join(path))}: is required{meaning}"
        value = value[part]
        if section_of(field) is None:
            expected = describe(field)
            if problem["type"] == "string_unicode":
                expected = "text in UTF-8"
            return f"{source_of('.'.join(path))}: expected {expected}, got {in_short(value)}"
    # a check over several fields of a section; its message begins with the name of one of them
    key, _, rest = _plain(problem["msg"]).partition(": ")
    return f"{source_of('.'.join([*path, key]))}: {rest}"


def _place(values: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Put the value of a flag into its section. An invalid section is reported later."""
    for name in path[:-1]:
        inner = values.get(name)
        if inner is not None and not isinstance(inner, dict):
            return
        values[name] = dict(inner or {})
        values = values[name]
    values[path[-1]] = value


def _bounds(field: FieldInfo) -> str:
    phrases = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    found = [
        f"{phrase} {getattr(rule, name)}"
        for name, phrase in phrases.items()
        for rule in field.metadata
        if getattr(rule, name, None) is not None
    ]
    return " " + " and ".join(found) if found else ""


def _from_text(field: FieldInfo, text: str, name: str) -> object:
    """Convert the text of a flag to the type of its field. Invalid text is reported later."""
    base = base_type(field)
    if text.lower() in ("none", "null") and field.default is None:
        return None
    if section_of(field) is not None and text == "{}":
        return {}
    if base is bool:
        return TRUTH_WORDS.get(text.lower(), text)
    if base in (int, float):
        try:
            return base(text)
        except ValueError:
            return text
    if get_origin(base) is dict:
        from qk_toolkit.strict_yaml import parse_yaml

        try:
            return parse_yaml(text)
        except ValueError as error:
            raise ConfigError(f"--{name}: is not valid YAML: {error}") from error
    return text


def load_yaml(path: Path, section: str | None = None) -> dict[str, Any]:
    """The fields of a YAML file, flat or under `section`."""
    from qk_toolkit.strict_yaml import MOST_CHARACTERS, parse_yaml  # workers read no settings

    try:
        with path.open("rb") as file:  # a pipe is allowed: --config <(command)
            raw = file.read(MOST_CHARACTERS + 1)
        if len(raw) > MOST_CHARACTERS:
            raise ConfigError(f"{path}: cannot be read: is larger than {MOST_CHARACTERS:,} bytes")
        content = parse_yaml(raw.decode("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid YAML: {error}") from error
    if content is None:
        return {}
    if isinstance(content, dict) and section is not None and section in content:
        if len(content) > 1:
            others = ", ".join(str(key) for key in content if key != section)
            raise ConfigError(
                f"{path}: {section}: must hold all fields; move these into it: {others}"
            )
        content = {} if content[section] is None else content[section]
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected 'name: value' lines, got {type(content).__name__}")
    return content


def _plain(message: str) -> str:
    return " ".join(message.removeprefix("Value error, ").split())
