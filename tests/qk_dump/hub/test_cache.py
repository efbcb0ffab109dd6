"""A cache in which somebody else wrote: links, pipes, folders and garbled notes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from captures import content
from hub_server import (
    CLIENT_WARNINGS,
)
from hub_server import hub as hub  # the fixture
from hubs import REPO
from qk_dump.hub.place import HubPlace
from qk_dump.hub.pull import fetch_dump
from qk_toolkit.errors import ConfigError, OutputError
from three_heads_on_hub import FILE, TINY, refusal
from three_heads_on_hub import cache as cache  # the fixtures
from three_heads_on_hub import client as client
from three_heads_on_hub import commit as commit
from three_heads_on_hub import local as local

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)


def cached(cache: Path, commit: str) -> dict[str, Path]:
    repo = cache / "datasets--me--qk"
    snapshot = repo / "snapshots" / commit
    return {
        "the repo's blobs": repo / "blobs",
        "the commit": snapshot,
        "a head": snapshot / "l00h01q",
    }


@pytest.mark.parametrize("place", ["the repo's blobs", "the commit", "a head"])
def test_nothing_is_written_through_a_link_out_of_the_cache(
    place: str, commit: str, cache: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = cached(cache, commit)[place]
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    assert "is outside the cache because of a link; remove the link" in refusal(ConfigError)
    assert not list(outside.iterdir())


def test_a_file_that_leads_out_of_the_cache_is_replaced(
    commit: str, cache: Path, local: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    file = cached(cache, commit)["a head"] / "data.parquet"
    file.parent.mkdir(parents=True)
    file.symlink_to(tmp_path / "secret")
    assert content(fetch_dump(TINY).folder) == content(local)
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_pipe_in_the_cache_is_refused_unopened(commit: str, cache: Path) -> None:
    file = cached(cache, commit)["a head"] / "data.parquet"
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    said = f"{file}: is a named pipe, not a regular file; remove it"
    assert refusal(ConfigError).startswith(said)


@pytest.mark.usefixtures("commit")
def test_a_cache_that_cannot_be_is_told(tmp_path: Path, client: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    client.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert "cannot be written: Not a directory" in refusal(OutputError)


def test_a_folder_in_a_files_place_is_told(commit: str, cache: Path) -> None:
    (cached(cache, commit)["a head"] / "data.parquet").mkdir(parents=True)
    assert "data.parquet: is a folder, not a regular file; remove it" in refusal(ConfigError)


def test_a_cache_of_links_elsewhere_is_used(
    commit: str, cache: Path, local: Path, tmp_path: Path
) -> None:
    real = tmp_path / "disk" / "datasets--me--qk"
    real.mkdir(parents=True)
    cache.mkdir()
    (cache / "datasets--me--qk").symlink_to(real)  # people move a dataset to a larger disk
    assert content(fetch_dump(TINY).folder) == content(local)
    assert (real / "blobs").is_dir()


NOTES = {
    "files are a list": {"files": [1]},
    "files are a number": {"files": 5},
    "no files": {"checked": {}},
    "a file is a number": {"files": {"l00h00q/data.parquet": 5}},
    "a file has no hash": {"files": {"l00h00q/data.parquet": [1]}},
    "a hash is a path": {"files": {"l00h00q/data.parquet": [1, "../../evil", "sha256"]}},
    "a kind is none": {"files": {"l00h00q/data.parquet": [1, "a" * 64, "md5"]}},
    "a name leads out": {"files": {"../l00h00q/data.parquet": [1, "a" * 64, "sha256"]}},
}


def test_offline_garbled_notes_are_told(
    commit: str, cache: Path, client: pytest.MonkeyPatch
) -> None:
    fetch_dump(TINY)
    notes = cache / "datasets--me--qk" / "attention-plasticity"
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    for name, note in NOTES.items():
        (notes / f"{commit}.json").write_text(json.dumps(note))
        assert f"offline, and {notes / commit}.json is damaged; unset" in refusal(), name
    for text in ("{", "[" * 100_000, "5", ""):
        (notes / f"{commit}.json").write_text(text)
        assert "offline, and the cache holds no checked copy" in refusal()
    (notes / f"{commit}.json").unlink()
    os.mkfifo(notes / f"{commit}.json")
    assert "offline, and the cache holds no checked copy" in refusal()


def test_offline_a_note_of_commits_leads_nowhere(
    commit: str, cache: Path, client: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fetch_dump(TINY)
    notes = cache / "datasets--me--qk" / "attention-plasticity"
    (tmp_path / "evil.json").write_text((notes / f"{commit}.json").read_text())
    client.setattr(constants, "HF_HUB_OFFLINE", True)
    for told in (str(tmp_path / "evil"), 5, None, ["a"], {}):
        (notes / "revisions.json").write_text(json.dumps({"tiny": told}))
        assert "offline, and the cache holds no checked copy" in refusal()
    assert "no checked copy" in refusal(place=HubPlace(REPO, str(tmp_path / "evil")))


def test_online_garbled_notes_are_no_obstacle(commit: str, cache: Path, local: Path) -> None:
    for checked in (5, [1], {FILE: 5}, {FILE: ["a"]}, {FILE: None}):
        fetched = fetch_dump(TINY)
        note = cache / "datasets--me--qk" / "attention-plasticity" / f"{commit}.json"
        note.write_text(json.dumps({"files": 3, "checked": checked}))
        assert content(fetch_dump(TINY).folder) == content(fetched.folder) == content(local)
