"""The Hub server of the tests with clients other than push and pull."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi

import hub_server
from dumps import make_dump
from hub_server import WRITER, HubServer, running_hub
from qk_dump.card import card
from qk_dump.hub.files import list_files
from qk_dump.hub.place import HubPlace
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest

hub = hub_server.hub
REPO = "me/data"


def test_a_listing_in_several_pages_is_complete() -> None:
    files = {f"d{i // 10}/e/{i}.txt": b"%d" % i for i in range(40)}
    with running_hub(page_size=7) as hub:
        commit = hub.store.write(REPO, files, "b").id
        found = list_files(hub.api(), HubPlace(REPO, "b"), commit)
        assert len(hub.requests("tree")) == 7
    assert set(found) == {".gitattributes", *files}


def test_load_dataset_reads_the_requested_branch(hub: HubServer, tmp_path: Path) -> None:
    heads = [HeadId(0, 0, "q"), HeadId(0, 0, "k")]
    for branch, rows in (("tiny", 50), ("models/other", 70)):
        folder = make_dump(tmp_path / branch, layers=1, q_heads=1, k_heads=1, n=rows, d=4)
        (folder / "README.md").write_text(card(DumpManifest(model=branch), heads, examples=False))
        found = [path for path in folder.rglob("*") if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
        hub.store.write(REPO, files, branch)
    script = f"""
import json, datasets
heads = [datasets.load_dataset("{REPO}", "l00h00q", revision=branch, split="train")
         for branch in ("tiny", "models/other")]
print(json.dumps([[head.num_rows, head.column_names, len(head[0]["vector"])] for head in heads]))
"""
    command = [sys.executable, "-W", "error", "-W", "default::DeprecationWarning", "-c", script]
    done = subprocess.run(
        command, env=hub.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (rows, columns, width), (other_rows, *_) = json.loads(done.stdout)
    assert (rows, other_rows, width) == (50, 70, 4)
    assert {"bucket", "position", "example_id", "vector"} <= set(columns)
    assert not hub.requests("unknown")


def test_settings_of_the_callers_hub_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with running_hub() as hub:
        hub.store.write(REPO, {})
        assert HfApi(endpoint=hub.endpoint).dataset_info(REPO).sha
        environment = hub.environment
    assert environment["HF_TOKEN"] == WRITER
    assert "HF_HUB_OFFLINE" not in environment
    assert "HTTP_PROXY" not in environment
