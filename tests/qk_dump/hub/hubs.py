"""Dumps on the test Hub, and a client in this process that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from hub_server import WRITER, HubServer, no_waiting

REPO = "me/qk"


@contextmanager
def client_of(
    hub: HubServer, cache: Path, token: str | None = WRITER
) -> Iterator[pytest.MonkeyPatch]:
    """Let this process use `hub` as the Hub, with its own cache and without waiting."""
    with pytest.MonkeyPatch.context() as patch, no_waiting():
        patch.setenv("HF_ENDPOINT", hub.endpoint)
        if token is not None:
            patch.setenv("HF_TOKEN", token)
        patch.setattr(constants, "ENDPOINT", hub.endpoint)  # these are set at import
        files = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr("qk_dump.hub.client._WAITS", (0.0, 0.0))
        yield patch


def upload(hub: HubServer, folder: Path, branch: str = "tiny", below: str = "") -> str:
    """Make a branch hold exactly the files of the folder. Returns the commit id."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api = hub.api()
    api.create_repo(REPO, repo_type="dataset", exist_ok=True)
    if branch not in hub.branches(REPO):
        api.create_branch(REPO, branch=branch, repo_type="dataset")
    paths = {f"{below}{p.relative_to(folder)}": p for p in folder.rglob("*") if p.is_file()}
    old = [path for path in hub.branch(REPO, branch) if path not in paths]
    done = api.create_commit(
        REPO,
        repo_type="dataset",
        revision=branch,
        commit_message="upload",
        operations=[
            *(CommitOperationAdd(path, file) for path, file in paths.items()),
            *(CommitOperationDelete(path) for path in old if path != ".gitattributes"),
        ],
    )
    return str(done.oid)


def downloads(hub: HubServer) -> list[str]:
    """The downloaded files, in order."""
    marker = "/resolve/"
    return [
        entry.path.partition(marker)[2].partition("/")[2] for entry in hub.requests("resolve_get")
    ]
