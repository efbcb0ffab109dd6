"""Public functions have the shapes of their arrays and an example in their docstring.

An example imports all that it uses, and runs as it stands. It runs in a folder with
`data/sample`, the sample; `results/sample`, a run of it; `model`, a tiny random model with its
tokenizer; `texts`, two text files.
"""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from attention_plasticity import analyze_dump
from attention_plasticity.demo.sample import sample_path
from lasting_workers import workers as workers  # a fixture of all tests here
from tiny_texts import save_texts, save_tiny_model

MODULES = (
    "attention_plasticity",
    "attention_plasticity.figures",
    "attention_plasticity.statistics",
    "attention_plasticity.plasticity",
    "qk_sniffer",
)
ARRAYS = re.compile(r"\b(ArrayLike|Array|Vectors|Ints)\b")  # in annotations


def public(wanted):
    """The public objects of a kind, each once, with the module and the name as id."""
    found = {}
    for module in map(import_module, MODULES):
        for name in module.__all__:
            item = getattr(module, name)
            if wanted(item):
                found.setdefault(id(item), pytest.param(item, id=f"{module.__name__}.{name}"))
    return list(found.values())


def array_arguments(function):
    kinds = inspect.get_annotations(function)
    return [name for name, kind in kinds.items() if ARRAYS.search(kind) and name != "return"]


def is_class_with_example(item):
    return inspect.isclass(item) and ">>>" in (item.__doc__ or "")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folders that examples read, by their names in the examples."""
    folder = tmp_path_factory.mktemp("made")
    sample = folder / "sample"
    analyze_dump(sample_path(), output_dir=sample, heads=[0, 1], max_workers=1)
    model, texts = save_tiny_model(folder / "model"), save_texts(folder / "texts", [40, 60])
    runs = {"data/sample": sample_path(), "results/sample": sample}
    return {**runs, "model": model, "texts": texts}


@pytest.fixture
def _workspace(made, tmp_path, monkeypatch):
    """The current folder is a new one, with links to these folders."""
    monkeypatch.chdir(tmp_path)
    for name, folder in made.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).symlink_to(folder)


@pytest.mark.usefixtures("_workspace")
@pytest.mark.parametrize("item", [*public(inspect.isfunction), *public(is_class_with_example)])
def test_the_example_of_a_docstring_runs(item):
    tests = doctest.DocTestFinder(recurse=False).find(item, item.__name__, module=False, globs={})
    assert [test for test in tests if test.examples], "the docstring has no example"
    printed = []
    for test in tests:
        doctest.DocTestRunner(verbose=False).run(test, out=printed.append)
    assert not printed, "".join(printed)


@pytest.mark.parametrize(
    "function", public(lambda item: inspect.isfunction(item) and bool(array_arguments(item)))
)
def test_the_docstring_has_the_shape_of_every_array(function):
    text = inspect.getdoc(function) or ""
    for name in array_arguments(function):
        assert re.search(rf"^    {name}: \(", text, re.MULTILINE), f"{name} has no shape"
