"""Captures to a URL, with a real S3 server: the files of a local dump, and interruptions."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from captures import content
from qk_sniffer.capture.send import UrlTarget
from qk_sniffer.config import make_config
from qk_toolkit.cache import cache_folder, folder_of_url
from qk_toolkit.errors import ConfigError
from qk_toolkit.watcher import Watcher
from rank_processes import Forwards, run_ranks
from s3_server import error
from sniffing import sniff, sniff_first, words
from tiny_models import ARCHITECTURES
from tiny_texts import save_texts, tiny_tokenizer

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of one layer, as each file of a dump is sent."""
    folder, llama = tmp_path_factory.mktemp("model"), ARCHITECTURES["llama"]
    replace(llama, config={**llama.config, "num_hidden_layers": 1}).model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return save_texts(tmp_path_factory.mktemp("texts"), [60, 20, 40])


@pytest.fixture(scope="module")
def dump(model, texts, tmp_path_factory):
    """The files of a local dump."""
    folder = tmp_path_factory.mktemp("dump")
    assert sniff(model, texts, folder) == 0
    return content(folder)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTION_PLASTICITY_CACHE", str(tmp_path / "cache"))


def assert_sent(s3, dump):
    """The URL has the dump, and nothing large is left here."""
    assert {name.removeprefix("dump/"): s3.get(name) for name in s3.names("dump/")} == dump
    hashes = left_files(cache_folder() / "model-hashes")  # of the files of the model
    assert left_files(cache_folder()) - hashes <= {"dump.json"}


def left_files(folder):
    return {path.name for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


def test_a_capture_to_a_url_is_the_local_dump(s3, model, texts, dump, capsys, monkeypatch):
    url = s3.url("dump")
    assert sniff(model, texts, url, output__data_root=f"{url}/") == 0
    assert f"next: attention-plasticity analyze {url}" in capsys.readouterr().out
    assert_sent(s3, dump)
    puts = [request.path for request in s3.requests if request.method == "PUT"]
    assert puts.pop(0).endswith("/.write-test")
    assert puts[-1].endswith("/dump.json")
    for _ in range(2):  # with the work folder, then on another machine
        s3.requests.clear()
        assert sniff(model, texts, url) == 0
        assert "is complete already; nothing to do" in capsys.readouterr().err
        assert {request.method for request in s3.requests} <= {"GET", "HEAD"}
        shutil.rmtree(cache_folder())
    assert sniff(model, texts, url, inference__batch_size=2) == 2
    assert f"{url}: holds a capture that differs in inference" in capsys.readouterr().err
    s3.put("dump/l99h00q/data.parquet", b"of another model")
    assert sniff(model, texts, url, overwrite="true") == 0
    assert_sent(s3, dump)
    for name in s3.names("dump/"):
        s3.delete(name)
    assert sniff(model, texts, url) == 0  # the dump was removed, so it is made again
    assert_sent(s3, dump)


def test_an_interrupted_copy_continues(s3, model, texts, dump, capsys, tmp_path):
    url, work = s3.url("dump"), tmp_path / "work"
    s3.fail("PUT", error(500), path="examples.parquet")
    assert sniff(model, texts, url, output__work_dir=work) == 1
    assert f"all files are kept in {work}" in capsys.readouterr().err
    assert "dump/dump.json" not in s3.names()
    s3.heal()
    sent = {name for name in s3.names("dump/") if "parquet" in name}
    assert sent
    s3.requests.clear()
    assert sniff(model, texts, url, output__work_dir=work) == 0
    again = {request.path for request in s3.requests if request.method == "PUT"}
    assert not {f"/{s3.bucket}/{name}" for name in sent} & again
    assert_sent(s3, dump)
    assert left_files(work) == {"dump.json"}


def test_an_interrupted_overwrite_continues(s3, model, texts, monkeypatch):
    url = s3.url("dump")
    assert sniff(model, texts, url) == 0
    for size in (16, 8):  # with the settings of the old dump, and with others
        new = {"capture__min_bucket_size": size}
        work = folder_of_url(url, "captures")
        flags = {"output__data_root": url, "overwrite": "true", **new}
        sniff_first(monkeypatch, 2, model, texts, work, **flags)
        s3.requests.clear()
        assert sniff(model, texts, url, **new) == 0
        assert any(request.method == "PUT" and "parquet" in request.path for request in s3.requests)
        plan = json.loads(s3.get("dump/dump.json"))["capture"]
        assert plan["capture"]["min_bucket_size"] == size
        assert not [*cache_folder().rglob(".replaces-url")]


def test_missing_permissions_and_missing_work_folders_are_reported(
    s3, model, texts, tmp_path, capsys
):
    url, missing = s3.url("dump"), tmp_path / "no-model"
    for flags in ({}, {"overwrite": "true"}):
        s3.fail("PUT", error(403, "AccessDenied"), path="")
        assert sniff(missing, missing, url, **flags) == 1  # before the model is loaded
        assert f"{url}/.write-test: writing failed" in capsys.readouterr().err
        s3.heal()
    s3.fail("PUT", error(403, "AccessDenied"), path="l00h00k")
    assert sniff(model, texts, url) == 1
    assert f"all files are kept in {cache_folder()}" in capsys.readouterr().err
    s3.heal()
    config = make_config(
        model={"name": "m"}, dataset={"path": "p"}, output={"data_root": s3.url("other")}
    )
    with pytest.raises(ConfigError, match=r"work_dir: .* holds no dump .* nodes share"):
        UrlTarget(config, Watcher()).send()


@pytest.mark.long
def test_two_processes_share_the_work_folder(s3, model, texts, dump, tmp_path):
    work = tmp_path / "work"
    flags = words(model, texts, work, output__data_root=s3.url("dump"), output__work_dir=work)
    ranks = run_ranks(flags, Forwards(tmp_path / "log", 2), tmp_path)
    assert ranks.codes == [0, 0], ranks.told
    names = {name.removeprefix("dump/") for name in s3.names("dump/")}
    assert names == set(dump)
    assert left_files(work) == {"dump.json"}
    puts = [request.path for request in s3.requests if request.method == "PUT"]
    puts = [path for path in puts if not path.endswith("/.write-test")]
    assert len(puts) == len(set(puts)) == len(dump)


def test_other_dumps_and_other_places_are_refused(s3, tmp_path, capsys, monkeypatch):
    s3.put("dump/l00h00q/data.parquet", b"of another model")
    missing = tmp_path / "no-model"  # refused before the model is loaded
    assert sniff(missing, missing, s3.url("dump")) == 2
    assert f"{s3.url('dump')}: holds another dump (l00h00q/data.parquet)" in capsys.readouterr().err
    for output, reason in (
        ({"data_root": "hf://datasets/owner/name"}, "output.hf_repo_id"),
        ({"data_root": "s3://key:secret@bucket/dump"}, "s3://…@bucket: a URL with a password"),
        ({"data_root": s3.url("a"), "hf_repo_id": "owner/name"}, "cannot be used together"),
        ({"data_root": "folder", "work_dir": "work"}, "only if data_root is a URL"),
    ):
        with pytest.raises(ConfigError, match=reason):
            make_config(model={"name": "m"}, dataset={"path": "p"}, output=output)


def test_a_copy_of_a_lost_machine_is_made_again(s3, model, texts, dump, capsys):
    url = s3.url("dump")
    s3.fail("PUT", error(500), path="/dump/dump.json")
    assert sniff(model, texts, url) == 1
    s3.heal()
    shutil.rmtree(cache_folder())
    assert sniff(model, texts, url) == 2
    assert f"{url}: holds another dump (" in capsys.readouterr().err
    assert sniff(model, texts, url, overwrite="true") == 0
    assert_sent(s3, dump)


def test_a_work_folder_that_was_partly_emptied_is_not_sent(s3, model, texts, dump, monkeypatch):
    unlink = Path.unlink

    def interrupted(path, missing_ok=False):
        if path.name == "data.parquet" and path.parent.name == "l00h01q":
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as change:
        change.setattr(Path, "unlink", interrupted)
        assert sniff(model, texts, s3.url("dump")) == 130
    assert sniff(model, texts, s3.url("dump")) == 0
    assert_sent(s3, dump)
