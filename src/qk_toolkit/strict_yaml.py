"""Safe YAML for settings: bounded size, no duplicate keys. Also writing it."""

from __future__ import annotations

import re
from typing import Any

import yaml

MOST_CHARACTERS = 1_000_000

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
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except (yaml.YAMLError, *_PARSER_ERRORS) as error:
        raise ValueError(" ".join(str(error).split())) from error


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML: a duplicate key is an error, and `1e-3` is a number."""

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
