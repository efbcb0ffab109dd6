"""Every branch of a dataset with a dump."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from dumps import make_dump
from hub_server import CLIENT_WARNINGS, HubServer, running_hub, status
from hubs import REPO, client_of, upload
from qk_dump.hub.branches import dumps_on_branches
from qk_dump.hub.place import is_every_branch
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError, HubError

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)
EVERY = f"hf://datasets/{REPO}@*"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """Two branches with a dump, one with two models, and main without."""
    dump = make_dump(tmp_path / "dump", layers=1, n=60, q_heads=1, k_heads=1)
    with running_hub() as hub, client_of(hub, tmp_path / "cache"):
        upload(hub, dump, "small")
        upload(hub, dump, "feature/large", below="model/")
        yield hub


def test_branches_with_heads_are_found(hub: HubServer) -> None:
    notes: list[str] = []
    hub.fail("refs", status(503), times=1)
    found = [f"hf://datasets/{REPO}@{name}" for name in ("feature%2Flarge", "small")]
    assert dumps_on_branches(EVERY, notes.append) == found
    assert notes == [f"{REPO}: left out, because they have no heads: main"]
    assert dumps_on_branches(f"{EVERY}/model") == [f"{found[0]}/model"]
    with pytest.raises(ConfigError, match="no branch of the dataset has heads"):
        dumps_on_branches(f"{EVERY}/none")
    with pytest.raises(HubError, match=r"me/none@\*: fetching failed: no such dataset"):
        dumps_on_branches("hf://datasets/me/none@*")
    hub.fail("refs", status(500), times=None)
    with pytest.raises(HubError, match="the Hub answered 500"):
        dumps_on_branches(EVERY)


@pytest.mark.usefixtures("hub")
def test_every_branch_is_analysed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["analyze", EVERY, "--output_dir", str(out), "--max_workers", "1"]) == 0
    assert "left out, because they have no heads: main" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == ["feature-large", "small"]
    tables = {path.read_bytes() for path in out.rglob("head_metrics.csv")}
    assert len(tables) == 1  # of the same dump


def test_one_dump_cannot_be_every_branch() -> None:
    assert is_every_branch(EVERY)
    assert not is_every_branch("dumps/a@*")
    with pytest.raises(ConfigError, match="stands for every branch; give it under dumps"):
        open_dump(EVERY)
