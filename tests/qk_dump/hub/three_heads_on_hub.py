"""Fixtures of tests of wrong replies and of a damaged cache: three heads on a branch of a Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumps import make_dump
from hub_server import HubServer
from hubs import REPO, upload
from pulling import cache as cache
from pulling import client as client
from qk_dump.hub.place import HubPlace
from qk_dump.hub.pull import fetch_dump
from qk_toolkit.errors import HubError, ToolkitError

TINY = HubPlace(REPO, "tiny")
FILE = "l00h01q/data.parquet"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of three heads."""
    return make_dump(tmp_path_factory.mktemp("dump"), layers=1, q_heads=2, k_heads=1, n=40)


@pytest.fixture
def commit(hub: HubServer, local: Path, client: pytest.MonkeyPatch) -> str:
    """The dump, on the Hub."""
    return upload(hub, local)


def refusal(kind: type[ToolkitError] = HubError, place: HubPlace = TINY) -> str:
    """The one line that a pull ends with."""
    with pytest.raises(kind) as caught:
        fetch_dump(place)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
