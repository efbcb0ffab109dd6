"""Fixtures of the tests of pulls: a dump, an empty cache, and a client of the test Hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dumps import make_dump
from hub_server import HubServer
from hubs import REPO, client_of
from qk_dump.hub.place import HubPlace
from qk_dump.manifest import DumpManifest, write_manifest

TINY = HubPlace(REPO, "tiny")
MANIFEST = DumpManifest(model="m", num_layers=2, num_q_heads=4, num_k_heads=2)
FILE = "l01h02q/data.parquet"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump that tells its layout."""
    folder = make_dump(tmp_path_factory.mktemp("dump"), n=40)
    write_manifest(folder, MANIFEST)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def client(hub: HubServer, cache: Path) -> Iterator[pytest.MonkeyPatch]:
    with client_of(hub, cache) as patch:
        yield patch
