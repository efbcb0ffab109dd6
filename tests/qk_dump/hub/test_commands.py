"""The verbs `push` and `pull`, `hf://` as a dump, and captures that are published."""

import json
import shutil
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from dumps import make_dump
from hub_server import CLIENT_WARNINGS
from hubs import REPO, client_of, downloads, files_of, on_branch, upload
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.manifest import DumpManifest, write_manifest
from sniffing import sniff
from tiny_texts import save_texts, save_tiny_model

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)

URL = f"hf://datasets/{REPO}@tiny"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = make_dump(tmp_path_factory.mktemp("dump"), n=60)
    write_manifest(
        folder, DumpManifest(model="maker/Tiny_1b", num_layers=2, num_q_heads=4, num_k_heads=2)
    )
    return folder


@pytest.fixture
def client(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with client_of(hub, tmp_path / "cache") as patch:
        yield patch


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["push", "--repo", "me/qk"], "the following arguments are required: DUMP"),
        (["push", "none", "--repo", "me/qk", "--branch", "b"], "none: does not exist"),
        (["push", "bare", "--repo", "me/qk"], "does not name its model; give a branch"),
        (["push", "bare"], "push takes DUMP OWNER/NAME: give the dataset on the Hub once"),
        (["push", "bare", "a/b", "--repo", "a/b"], "push takes DUMP OWNER/NAME: give the dataset"),
        (["push", "bare", "a/b@c", "--branch", "d"], "--branch: the branch is given twice, c and"),
        (["pull", "qk"], "qk: expected owner/name@branch"),
        (["pull", "me/qk@b", "--layers", "a-b"], "--layers: expected a list of integers"),
    ],
)
@pytest.mark.usefixtures("client")
def test_usage_errors_are_one_line(hub, local, tmp_path, capsys, words, said):
    shutil.copytree(local, tmp_path / "dump")
    shutil.copytree(local, tmp_path / "bare")
    (tmp_path / "bare" / "dump.json").unlink()
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert said in told.err
    assert told.err.count("\n") == 1
    assert not hub.log


@pytest.mark.usefixtures("client")
def test_push_and_pull_say_where_the_dump_is(hub, local, capsys):
    assert main(["push", str(local), REPO]) == 0
    commit = hub.branches(REPO)["tiny-1b"]
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"me/qk@tiny-1b: published, commit {commit}",
        "next: attention-plasticity pull me/qk@tiny-1b",
    ]
    assert main(["push", str(local), f"hf://datasets/{REPO}@tiny-1b"]) == 0
    assert f"is up to date, commit {commit}" in capsys.readouterr().out
    assert main(["pull", "me/qk@tiny-1b", "--layers", "0", "--heads", "0,1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"me/qk@tiny-1b: commit {commit}"
    folder = Path(said[1])
    assert sorted(path.name for path in folder.glob("l*")) == ["l00h00k", "l00h00q", "l00h01q"]
    assert main(["pull", "hf://datasets/me/qk@tiny-1b", "--cache_dir", "mine"]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[1])
    assert {**files_of(folder), "README.md": b""} == {**files_of(local), "README.md": b""}
    assert folder.is_relative_to("mine")


def test_a_config_names_dataset_branch_and_cache(hub, local, tmp_path, client):
    upload(hub, local, "main", "model/")
    upload(hub, local, "tiny")
    config = tmp_path / "config.yaml"
    config.write_text(
        f"dataset_name: {REPO}\ndataset_revision: tiny\ndataset_cache_dir: mine\n"
        "download_max_workers: 2\nlayers: 0\nheads: [0]\nmax_workers: 1\n"
    )
    assert main(["analyze", "--config", str(config)]) == 0
    assert (tmp_path / "results" / "tiny" / "head_metrics.csv").exists()
    assert (tmp_path / "mine" / "datasets--me--qk").is_dir()
    assert not (tmp_path / "cache").exists()
    assert not any(path.startswith("l01") for path in downloads(hub))
    words = ["--dataset_revision", "main", "--model_dir", "model"]
    assert main(["analyze", "--config", str(config), *words]) == 0
    info = json.loads((tmp_path / "results" / "model" / "run.json").read_text())
    assert info["input"]["hub"]["model_dir"] == "model"


def test_a_capture_is_published_and_a_second_time_nothing_happens(hub, tmp_path, client, capsys):
    model, texts = save_tiny_model(tmp_path / "Tiny Model"), save_texts(tmp_path / "t", [60, 90])
    fields = {"output__hf_repo_id": REPO, "output__private": "true"}
    assert sniff(model, texts, tmp_path / "dump", **fields) == 0
    assert "me/qk@tiny-model: published" in capsys.readouterr().out
    commits = hub.branches(REPO)
    assert hub.store.repos[REPO].private
    captured = {path: data for path, data in files_of(tmp_path / "dump").items() if path[0] != "."}
    assert on_branch(hub, "tiny-model") == captured
    assert sniff(model, texts, tmp_path / "dump", **fields) == 0
    assert "is up to date" in capsys.readouterr().out
    assert hub.branches(REPO) == commits


def test_a_capture_that_could_not_be_published_does_not_begin(tmp_path, capsys):
    for repo, branch, said in (("qk", "tiny", "got 'qk'"), (REPO, "main", "main holds the list")):
        fields = {"output__hf_repo_id": repo, "output__hf_branch": branch}
        assert sniff(tmp_path / "m", tmp_path / "t", tmp_path / "dump", **fields) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "dump").exists()


@pytest.mark.usefixtures("client")
def test_a_config_is_held_against_heads_that_were_not_fetched(hub, local, tmp_path, capsys):
    bare = Path(shutil.copytree(local, tmp_path / "bare"))
    (bare / "dump.json").unlink()
    upload(hub, bare)
    words = ["analyze", "--dataset_local_root", URL, "--layers", "0", "--heads", "0"]
    assert main([*words, "--num_q_heads", "4", "--num_k_heads", "1"]) == 2
    assert "queries would be paired with the wrong keys" in capsys.readouterr().err


def test_layers_of_a_dump_without_its_json_are_analysed(hub, local, tmp_path, client):
    """As the original tool published it: heads alone. Only files of these layers are fetched.

    The bins are those of the first query head, so that commands with other layers share a run.
    """
    dump = Path(shutil.copytree(local, tmp_path / "original"))
    (dump / "dump.json").unlink()
    for file in (dump / "l01h00q").iterdir():  # has the positions of other texts
        shutil.copy(make_dump(tmp_path / "short", n=9, context=64) / "l01h00q" / file.name, file)
    upload(hub, dump)
    words = ["analyze", f"hf://datasets/{REPO}@tiny", str(tmp_path / "out"), "--max_workers", "1"]
    assert main([*words, "--layers", "1"]) == 0
    assert [name for name in downloads(hub) if name[:3] != "l01"] == ["l00h00q/data.parquet"]
    assert main([*words, "--layers", "0"]) == 0
    rows = (tmp_path / "out" / "head_metrics.csv").read_text().splitlines()
    assert [row[:3] for row in rows[1:]] == [f"{n // 4},{n % 4}" for n in range(8)]
