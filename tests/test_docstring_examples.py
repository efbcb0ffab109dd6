"""Public functions have the shapes of their arrays and an example in their docstring.

An example imports all that it uses, and runs as it stands.
"""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

MODULES = ("attention_plasticity.statistics", "attention_plasticity.plasticity")
ARRAYS = re.compile(r"\b(ArrayLike|Array|Vectors|Ints)\b")  # in annotations


def public(wanted: Callable[[Any], bool]) -> list[Any]:
    """The public objects of a kind, each once, with the module and the name as id."""
    found: dict[int, Any] = {}
    for module in map(import_module, MODULES):
        for name in module.__all__:
            item = getattr(module, name)
            if wanted(item):
                found.setdefault(id(item), pytest.param(item, id=f"{module.__name__}.{name}"))
    return list(found.values())


def array_arguments(function: Callable[..., Any]) -> list[str]:
    kinds = inspect.get_annotations(function)
    return [name for name, kind in kinds.items() if ARRAYS.search(kind) and name != "return"]


@pytest.mark.parametrize("item", public(inspect.isfunction))
def test_the_example_of_a_docstring_runs(item: Any) -> None:
    tests = doctest.DocTestFinder(recurse=False).find(item, item.__name__, module=False, globs={})
    assert [test for test in tests if test.examples], "the docstring has no example"
    printed: list[str] = []
    for test in tests:
        doctest.DocTestRunner(verbose=False).run(test, out=printed.append)
    assert not printed, "".join(printed)


@pytest.mark.parametrize(
    "function", public(lambda item: inspect.isfunction(item) and bool(array_arguments(item)))
)
def test_the_docstring_has_the_shape_of_every_array(function: Callable[..., Any]) -> None:
    text = inspect.getdoc(function) or ""
    for name in array_arguments(function):
        assert re.search(rf"^    {name}: \(", text, re.MULTILINE), f"{name} has no shape"
