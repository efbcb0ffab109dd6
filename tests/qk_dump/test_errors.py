"""The errors a person may see."""

from __future__ import annotations

import pickle

import pytest

from qk_dump.errors import ConfigError, DumpError, HeadError, OutputError, ToolkitError


@pytest.mark.parametrize(
    ("kind", "code"), [(ConfigError, 2), (DumpError, 1), (HeadError, 1), (OutputError, 1)]
)
def test_each_error_is_one_of_ours_with_the_exit_code_of_the_contract(
    kind: type[ToolkitError], code: int
) -> None:
    assert issubclass(kind, ToolkitError)
    assert kind("x").exit_code == code


@pytest.mark.parametrize("kind", [ConfigError, DumpError, HeadError, OutputError])
def test_an_error_survives_the_way_from_a_worker(kind: type[ToolkitError]) -> None:
    error = pickle.loads(pickle.dumps(kind("a.parquet: row 3: negative bucket")))
    assert type(error) is kind
    assert str(error) == "a.parquet: row 3: negative bucket"
