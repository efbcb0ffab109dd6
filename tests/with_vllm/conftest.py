"""Fixtures of captures with vLLM: dumps of both engines from the same weights and texts."""

from importlib.util import find_spec

import pytest

from helpers.captures_of_both import Captures

_vllm = find_spec("vllm")  # a folder of that name has no origin
collect_ignore_glob = [] if _vllm is not None and _vllm.origin is not None else ["test_*.py"]


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    return Captures(tmp_path_factory.mktemp("captures"))
