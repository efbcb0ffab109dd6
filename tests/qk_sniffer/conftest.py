"""Fixtures of whole captures: a tiny model, texts, and their dump."""

import pytest

from sniffing import sniff
from tiny_texts import save_texts, save_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny model, which no test may change."""
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def texts(request, tmp_path_factory):
    """One text for each number of characters in `LENGTHS` of the test file."""
    return save_texts(tmp_path_factory.mktemp("texts"), request.module.LENGTHS)


@pytest.fixture(scope="module")
def whole(model, texts, tmp_path_factory):
    """The dump of a capture without interruption."""
    dump = tmp_path_factory.mktemp("whole")
    assert sniff(model, texts, dump) == 0
    return dump
