"""YAML as settings need it: safe, of bounded size and depth, and no key given twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

MOST_CHARACTERS = 1_000_000
DEEPEST = 50  # lists and mappings inside each other
_MOST_VALUES = 20_000  # aliases counted as what they stand for

# what PyYAML raises on text that it cannot read, besides its own errors
_GARBLED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def parse_yaml(text: str) -> Any:
    """The value that YAML text stands for; a `ValueError` says in one line why there is none."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        raise ValueError(_with_line(error)) from error
    except (yaml.YAMLError, *_GARBLED) as error:
        raise ValueError(" ".join(str(error).split())) from error


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error and `1e-3` is the number it looks like.

    A few lines of aliases can stand for billions of values, or for a list that holds itself. Values
    are counted while the text is read, each alias as all that it stands for.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        self._values_of: dict[int, int] = {}  # by the id of a node that is complete

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._values
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._refused(f"is nested more than {DEEPEST} deep", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
            self._values_of[id(node)] = self._values - before
        elif id(node) not in self._values_of:
            raise self._refused(f"'*{event.anchor}' stands inside what it stands for", event)
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


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"),
    list("-+.0123456789"),
)


def _with_line(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem)
    if "'\\t'" in problem:
        problem = "indent with spaces, not tabs"
    line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
    return " ".join(f"{line}{problem}".split())
