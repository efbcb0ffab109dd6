"""Fixtures of whole captures: a tiny model, texts, and their dump."""

from __future__ import annotations

from pathlib import Path

import pytest

from sniffing import sniff
from tiny_texts import save_texts, save_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, which no test may change."""
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def texts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One text for each number of characters in `LENGTHS` of the test file."""
    return save_texts(tmp_path_factory.mktemp("texts"), request.module.LENGTHS)


@pytest.fixture(scope="module")
def whole(model: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a capture without interruption."""
    dump = tmp_path_factory.mktemp("whole")
    assert sniff(model, texts, dump) == 0
    return dump
