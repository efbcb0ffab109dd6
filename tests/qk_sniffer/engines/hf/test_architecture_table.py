"""The table of architectures in the docs is the one the tests make."""

from __future__ import annotations

import pytest

from tools.architecture_table import DOCS, written


@pytest.mark.long
def test_the_docs_hold_the_table_that_the_tests_make() -> None:
    assert DOCS.read_text() == written(DOCS.read_text()), "run: make architectures"
