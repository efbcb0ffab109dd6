"""Dumps on the test Hub, and a client in this process that uses it."""

from contextlib import contextmanager

import huggingface_hub.constants as constants
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from dumps import make_dump
from hub_server import WRITER, no_waiting
from qk_dump.card import card
from qk_dump.hub.fetch import fetch_dump
from qk_dump.hub.place import HubPlace
from qk_dump.hub.publish import push_dump
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.side_files import Example, write_examples, write_tokens
from qk_dump.source import open_dump
from qk_toolkit.errors import ToolkitError

REPO = "me/qk"
TINY = HubPlace(REPO, "tiny")


@contextmanager
def client_of(hub, cache, token=WRITER):
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


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def client(hub, cache):
    with client_of(hub, cache) as patch:
        yield patch


@pytest.fixture
def dump(tmp_path):
    return small_dump(tmp_path / "dump")


@pytest.fixture
def commit(hub, client, dump):
    """The small dump is on the Hub."""
    return upload(hub, dump)


def small_dump(root, *, model="org/tiny", examples=4, **rows):
    """A dump of one layer with all files of a capture."""
    settings = {"layers": 1, "q_heads": 2, "k_heads": 1, "n": 4, "d": 2}
    make_dump(root, **{**settings, **rows})
    manifest = DumpManifest(model=model, num_examples=examples)
    write_manifest(root, manifest)
    write_examples(root, [Example(number, f"text {number}", 8, "0") for number in range(examples)])
    write_tokens(root, {number: f"token {number}" for number in range(3)})
    text = card(manifest, list(open_dump(root).folders), True, tokens=True)
    (root / "README.md").write_text(text, encoding="utf-8")
    return root


def files_of(folder):
    """The files below a folder by path."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def upload(hub, folder, branch="tiny", below=""):
    """Make a branch hold exactly the files of the folder. Returns the commit id."""
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


def on_branch(hub, branch="tiny", repo=REPO):
    """The files of the branch, without `.gitattributes`; none if it does not exist."""
    if repo not in hub.store.repos or branch not in hub.branches(repo):
        return {}
    return {path: data for path, data in hub.branch(repo, branch).items() if path[:4] != ".git"}


def downloads(hub):
    """The downloaded files, in order."""
    marker = "/resolve/"
    return [
        entry.path.partition(marker)[2].partition("/")[2] for entry in hub.requests("resolve_get")
    ]


def pull_refusal(place=TINY, **options):
    """The short line that a pull ends with; it contains no token."""
    with pytest.raises(ToolkitError) as caught:
        fetch_dump(place, **options)
    return _short_line(caught.value)


def push_refusal(dump, repo=REPO, branch="tiny", **options):
    """The short line that a push ends with; it contains no token."""
    with pytest.raises(ToolkitError) as caught:
        push_dump(dump, repo, branch, **options)
    return _short_line(caught.value)


def _short_line(error):
    assert "\n" not in str(error)
    assert "hf_" not in str(error)
    assert len(str(error)) < 600
    return str(error)
