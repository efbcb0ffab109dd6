"""What is not published: files outside the dump, unreadable heads, and what may not be."""

import os
import shutil

import pyarrow.parquet as pq
import pytest

import hub_server
from dumps import make_dump
from hub_server import READER, WRITER, status
from hubs import REPO, TINY, files_of, on_branch, push_refusal
from odd_files import replace_by
from qk_dump.hub.fetch import fetch_dump
from qk_dump.hub.publish import push_dump
from qk_toolkit.errors import ToolkitError

pytestmark = [
    pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS),
    pytest.mark.usefixtures("client"),
]
HEAD = "l00h01q/data.parquet"


def refused_unsent(hub, dump, **options):
    """The message of a refusal before the Hub heard anything."""
    message = push_refusal(dump, **options)
    assert not hub.log
    return message


def test_links_are_published_as_files(hub, dump, tmp_path):
    """Files inside and outside the dump, and those of the client's cache."""
    expected = files_of(dump)
    shutil.move(dump / HEAD, tmp_path / "q")
    (dump / HEAD).symlink_to(tmp_path / "q")
    shutil.move(dump / "l00h00q", tmp_path / "head")
    (dump / "l00h00q").symlink_to(tmp_path / "head")
    (dump.parent / "link").symlink_to(dump)
    push_dump(dump.parent / "link", REPO, "tiny")
    assert on_branch(hub) == expected
    push_dump(fetch_dump(TINY).folder, REPO, "again")
    assert on_branch(hub, "again") == expected


def without(column):
    return lambda path: pq.write_table(pq.read_table(path).drop_columns(column), path)


GARBAGE = {
    "half": (
        lambda path: path.write_bytes(path.read_bytes()[:-200]),
        "is not a readable Parquet file",
    ),
    "a pipe": (lambda path: replace_by(os.mkfifo, path), "is not a regular file"),
    "no vectors": (without("vector"), "has no column 'vector'"),
}


@pytest.mark.parametrize(("spoil", "said"), GARBAGE.values(), ids=GARBAGE)
def test_a_head_that_nobody_could_read_is_refused(hub, tmp_path, spoil, said):
    dump = make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=777)
    spoil(dump / HEAD)
    message = refused_unsent(hub, dump)
    assert message.startswith(f"{dump / HEAD}: ")
    assert said in message


def test_an_incomplete_dump_is_refused(hub, dump):
    (dump / "attended/l00h00k").mkdir(parents=True)
    assert "attended/l00h00k: holds no Parquet file. Copy" in refused_unsent(hub, dump)
    shutil.rmtree(dump / "attended")
    (dump / "examples.parquet").write_text("garbage")
    assert "examples.parquet: is not a readable Parquet file" in refused_unsent(hub, dump)
    (dump / HEAD).rename(dump / "l00h01q" / "caf\udce9.parquet")
    assert "caf\\udce9.parquet: its name is not UTF-8; rename it" in refused_unsent(hub, dump)
    (dump / ".capture").mkdir()
    (dump / ".capture" / "plan.json").write_text("{}")
    assert "its capture is not finished. Run the same command again" in refused_unsent(hub, dump)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no run.json"),
        ("{", "cannot be read"),
        ("[]", "is not the file of an analysis"),
        ('{"head_layout": {}, "tables": {"a": "../secret.csv"}}', "expected names of CSV files"),
        ('{"head_layout": {}, "tables": {"a": "missing.csv"}}', "missing.csv"),
    ],
)
def test_a_folder_that_is_no_analysis(hub, dump, tmp_path, content, said):
    run = tmp_path / "run"
    run.mkdir()
    if content is not None:
        (run / "run.json").write_text(content)
    assert said in refused_unsent(hub, dump, run=run)


def test_names_that_are_no_dataset_or_branch(hub, dump):
    for repo in ("qk", "me/my qk", "me/a/b", "", "me/qk@tiny", "/qk", "mé/qk"):
        assert "repo: expected owner/name, got " in refused_unsent(hub, dump, repo=repo)
    for repo in ("me/-qk-", "me/a--b", "me/" + "a" * 100, "me/qk.git"):  # the client refuses them
        assert refused_unsent(hub, dump, repo=repo).startswith(f"{repo}@tiny: ")
    for branch in ("", "a b", "a..b", "-a", "a/", "/a", "a@b", "a%2Fb", "refs/x", "a" * 40):
        assert "use letters, digits" in refused_unsent(hub, dump, branch=branch)
    assert "main holds the list of branches" in refused_unsent(hub, dump, branch="main")


def test_private_never_means_public(hub, dump):
    hub.store.create_repo(REPO)
    assert "public; nothing was sent" in push_refusal(dump, private=True)
    assert set(hub.branches(REPO)) == {"main"}
    hub.store.repos[REPO].private = True
    hub.fail("create_repo", status(403), times=None)  # a token for this dataset alone is enough
    assert push_dump(dump, REPO, "tiny").changed  # without asking for it: stays as it is
    assert hub.store.repos[REPO].private


def test_tokens_that_are_none_or_may_not(hub, dump, client, caplog):
    caplog.set_level("DEBUG")
    for token in ("hf_ünïcode", "hf_two words", "hf_tab\there"):
        client.setenv("HF_TOKEN", token)
        assert "HF_TOKEN: the token holds characters" in refused_unsent(hub, dump)
    client.delenv("HF_TOKEN")
    assert "needs a token; set HF_TOKEN or run 'hf auth login'" in refused_unsent(hub, dump)
    hub.store.write(REPO, {"notes.md": b"x"}, "tiny")
    for token, words in ((READER, "write access"), ("hf_unknown", "HF_TOKEN or 'hf auth login'")):
        client.setenv("HF_TOKEN", token)
        assert words in push_refusal(dump)
        assert token not in caplog.text
    client.delenv("HF_TOKEN")
    assert push_dump(dump, REPO, "tiny", token=WRITER).changed


@pytest.mark.parametrize(
    "endpoint", ["info", "refs", "commits", "tree", "preupload", "lfs_batch", "commit"]
)
def test_garbled_answers_are_told(hub, dump, endpoint):
    told = []
    for body in (b"", b"null", b'{"a": 1}', b"<html>", b"\xff"):
        hub.fail(endpoint, status(200, body=body), times=None)
        try:
            push_dump(dump, REPO, "tiny")
        except ToolkitError as error:
            told.append(str(error))
        hub.heal()
        hub.store.repos.clear()
    assert told
    assert all(said.startswith(f"{REPO}@") and "\n" not in said for said in told)
