"""Which files belong to a dump."""

from __future__ import annotations

import pytest

from qk_dump.dump_files import is_dump_file


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("dump.json", True),
        ("examples.parquet", True),
        ("tokens.parquet", True),
        ("l00h07q/data.parquet", True),
        ("attended/l00h07k/data-00001.parquet", True),
        ("README.md", False),
        ("other.parquet", False),
        ("l00h07q/notes.txt", False),
        ("attended/l00h07q/data.parquet", False),  # attended rows are of keys
        ("folder/dump.json", False),
        ("folder/l00h07q/data.parquet", False),
    ],
)
def test_files_of_a_dump(path: str, expected: bool) -> None:
    assert is_dump_file(path) is expected
