"""Safe YAML for settings: bounded size and depth, no duplicate keys. Also writing it."""

from __future__ import annotations

import re
from typing import Any

import yaml

MOST_CHARACTERS = 1_000_000
MAX_DEPTH = 50  # levels of lists and mappings
_MOST_VALUES = 20_000  # each alias counts as all values it refers to

# raised by PyYAML on invalid text, besides its own errors
_PARSER_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises a `ValueError` with a message of one line."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        raise ValueError(_with_line(error)) from error
    except (yaml.YAMLError, *_PARSER_ERRORS, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML: a duplicate key is an error, and `1e-3` is a number.

    A few lines of aliases can expand to billions of values, or to a list that contains itself.
    Values are therefore counted while the text is read, with aliases expanded.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        self._values_of: dict[int, int] = {}  # id of a complete node → its number of values

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._values
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refused(f"is nested more than {MAX_DEPTH} deep", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
            self._values_of[id(node)] = self._values - before
        elif id(node) not in self._values_of:
            raise self._refused(f"alias '*{event.anchor}' is inside its own value", event)
        else:
            self._values += self._values_of[id(node)]
        if self._values > _MOST_VALUES:
            raise self._refused(f"holds more than {_MOST_VALUES:,} values", event)
        return node

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

    @staticmethod
    def _refused(problem: str, event: Any) -> yaml.composer.ComposerError:
        return yaml.composer.ComposerError(None, None, problem, event.start_mark)


class _StrictDumper(yaml.SafeDumper):
    """Safe YAML that `_StrictLoader` reads as the same values: the text `1e-3` is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value that occurs twice in full both times."""
        return True


for _side in (_StrictLoader, _StrictDumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"),
        list("-+.0123456789"),
    )


def yaml_text(values: Any) -> str:
    """Plain values as YAML, in their order. `parse_yaml` gives the same values."""
    return yaml.dump(values, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True, width=100)


def _with_line(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem)
    if "'\\t'" in problem:
        problem = "indent with spaces, not tabs"
    line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
    return " ".join(f"{line}{problem}".split())
