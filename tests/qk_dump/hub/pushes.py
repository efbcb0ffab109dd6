"""Fixtures of the tests of pushes: a dump, a client without waits, and what a refusal says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hub_fault_table import pushing, small_dump
from hub_server import HubServer
from qk_dump.hub.push import push_dump
from qk_toolkit.errors import ToolkitError

REPO = "me/qk"


@pytest.fixture(autouse=True)
def waits(hub: HubServer) -> Iterator[list[float]]:
    with pushing(hub) as waits:
        yield waits


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return small_dump(tmp_path / "dump")


def refusal(dump: Path, repo: str = REPO, branch: str = "tiny", **options: Any) -> str:
    """The short line that a push ends with; it contains no token."""
    with pytest.raises(ToolkitError) as caught:
        push_dump(dump, repo, branch, **options)
    assert "\n" not in str(caught.value)
    assert "hf_" not in str(caught.value)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def on_branch(hub: HubServer, branch: str = "tiny") -> dict[str, bytes]:
    """The files of the branch, without `.gitattributes`."""
    files = dict(hub.branch(REPO, branch))
    files.pop(".gitattributes")
    return files
