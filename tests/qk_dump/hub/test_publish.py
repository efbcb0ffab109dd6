"""Publishing a dump: the real client against the loopback Hub."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from huggingface_hub import HfApi

import hub_server
from dumps import add_attended, head_rows, write_columns
from hubs import REPO, files_of, on_branch, push_refusal, small_dump
from qk_dump.card import is_card
from qk_dump.heads import HeadId
from qk_dump.hub.branch import RemoteBranch
from qk_dump.hub.place import HubPlace
from qk_dump.hub.publish import Pushed, push_dump, push_files
from waiting import PATIENCE

pytestmark = [
    pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS),
    pytest.mark.usefixtures("client"),
]


def without_card(files):
    """The files without the card, which a push makes for the heads that are there."""
    return {name: data for name, data in files.items() if name != "README.md"}


def test_a_first_push_makes_dataset_branch_and_list(hub, dump):
    hub_bytes = []
    on_bytes = lambda *told: hub_bytes.append(told)  # noqa: E731
    done = push_dump(dump, REPO, "tiny", private=True, on_bytes=on_bytes)
    assert hub.store.repos[REPO].private is True
    assert on_branch(hub) == files_of(dump)
    assert set(hub.branch(REPO)) == {".gitattributes", "README.md"}
    assert "| `tiny` | `org/tiny` | `4` |" in hub.branch(REPO)["README.md"].decode()
    assert done == Pushed(done.place, hub.branches(REPO)["tiny"], True)
    assert len(hub.commits(REPO, "tiny")) == 2  # the Hub's own, and ours
    total = sum(len(data) for data in files_of(dump).values())
    assert hub_bytes == [(0, total), (total, total)]


def test_only_what_changed_is_sent(hub, dump, tmp_path):
    first = push_dump(dump, REPO, "tiny")
    hub.log.clear()
    branches = hub.branches(REPO)
    again = push_dump(dump, REPO, "tiny")
    assert (again.commit, again.changed) == (first.commit, False)
    assert hub.branches(REPO) == branches
    assert not hub.requests("commit", "preupload", "lfs_batch", "lfs_put")
    longer = small_dump(tmp_path / "longer", n=5) / "l00h01q" / "data.parquet"
    shutil.copy(longer, dump / "l00h01q" / "data.parquet")
    assert push_dump(dump, REPO, "tiny").changed
    assert [entry.bytes_in for entry in hub.requests("lfs_put")] == [longer.stat().st_size]
    assert on_branch(hub) == files_of(dump)
    assert len(hub.commits(REPO, "tiny")) == 3


def test_files_of_the_earlier_dump_disappear_and_others_stay(hub, dump):
    add_attended(dump, d=2)
    push_dump(dump, REPO, "tiny")
    assert without_card(on_branch(hub)) == without_card(files_of(dump))
    assert b"attended-l00h00k" in on_branch(hub)["README.md"]
    own = {"notes.md": b"mine", "l00h00q/why.md": b"mine", "plots/a.parquet": b"mine"}
    hub.store.write(REPO, own, "tiny")
    before = len(hub.commits(REPO, "tiny"))
    for folder in ("l00h01q", "attended"):
        shutil.rmtree(dump / folder)
    for name in ("examples.parquet", "tokens.parquet"):
        (dump / name).unlink()
    push_dump(dump, REPO, "tiny")
    assert without_card(on_branch(hub)) == without_card(files_of(dump) | own)
    assert b"l00h01q" not in on_branch(hub)["README.md"]
    assert len(hub.commits(REPO, "tiny")) == before + 1


def test_what_main_holds_does_not_come_to_the_branch(hub, dump):
    hub.store.write(REPO, {"model/l00h00q/data.parquet": b"of another", "notes.md": b"mine"})
    push_dump(dump, REPO, "tiny")
    assert on_branch(hub) == files_of(dump)
    assert hub.branch(REPO)["notes.md"] == b"mine"


def test_main_lists_every_branch_that_holds_a_dump(hub, tmp_path):
    hub.store.write(REPO, {"notes.md": b"no dump"}, "empty")
    hub.store.write(REPO, {"dump.json": b"{no JSON", "l00h00q/a.parquet": b"x"}, "odd")
    hub.store.write(REPO, {"model/l00h00q/a.parquet": b"x"}, "folder")
    push_dump(small_dump(tmp_path / "a", model="org/a|b"), REPO)
    done = push_dump(small_dump(tmp_path / "b", model="org/big"), REPO, "team/big")
    assert str(done.place) == f"{REPO}@team%2Fbig"
    text = hub.branch(REPO)["README.md"].decode()
    assert [line for line in text.splitlines() if line.startswith("| `")] == [
        r"| `a-b` | `org/a\|b` | `4` |",
        "| `folder` |  |  |",
        "| `odd` |  |  |",
        "| `team/big` | `org/big` | `4` |",
    ]
    assert f"hf://datasets/{REPO}@a-b\n" in text
    assert 'revision="a-b"' in text


def test_only_the_files_of_its_own_branch_are_listed(hub, dump, monkeypatch):
    """Of another branch, dump.json is asked for; without one, the folders of its root."""
    hub.store.write(REPO, {"dump.json": b"{}", "l00h00q/a.parquet": b"x"}, "other")
    hub.store.write(REPO, {"l00h00q/a.parquet": b"x"}, "original")
    others = {commit: name for name, commit in hub.branches(REPO).items()}
    listed = []
    tree = HfApi.list_repo_tree

    def seen(api, *given, **options):
        listed.append((others.get(options["revision"], "tiny"), options["recursive"]))
        return tree(api, *given, **options)

    monkeypatch.setattr(HfApi, "list_repo_tree", seen)
    push_dump(dump, REPO, "tiny")
    assert listed == [("main", True), ("original", False)]  # tiny begins where main began
    card = hub.branch(REPO)["README.md"]
    assert all(b"| `%s` |" % name in card for name in (b"original", b"other", b"tiny"))


def test_an_analysis_lists_its_own_folder(hub, dump):
    push_dump(dump, REPO, "tiny")
    hub.log.clear()
    (dump / "a.csv").write_text("1")
    for _ in range(2):
        push_files({"a.csv": dump / "a.csv"}, HubPlace(REPO, "tiny", "mine"), lambda path: True)
    listed = [entry.path.rpartition("/")[2] for entry in hub.requests("tree")]
    assert listed == ["mine", "mine"]
    assert on_branch(hub)["mine/a.csv"] == b"1"
    assert "l00h00q/data.parquet" in on_branch(hub)


def test_a_card_of_their_own_is_kept(hub, dump):
    hub.store.write(REPO, {"README.md": b"# by hand"})
    (dump / "README.md").write_text("# also by hand")
    (note,) = push_dump(dump, REPO, "tiny").notes
    assert "add the branch to it" in note
    assert hub.branch(REPO)["README.md"] == b"# by hand"
    assert (dump / "README.md").read_text() == "# also by hand"
    made = dump / "made.md"
    made.write_bytes(on_branch(hub)["README.md"])
    assert is_card(made)
    assert "config_name: l00h01q" in made.read_text()


def between(monkeypatch, branch, what, times=1):
    """Let something happen just before each of the next commits to a branch."""
    send = RemoteBranch._send
    left = [what] * times

    def later(remote, *given):
        additions = send(remote, *given)
        if remote.place.revision == branch and left:
            left.pop()()
        return additions

    monkeypatch.setattr(RemoteBranch, "_send", later)


def test_a_commit_of_somebody_else_meanwhile(hub, dump, monkeypatch):
    larger = files_of(dump) | {"l07h00q/a.parquet": b"theirs"}  # must not be taken for ours
    for branch, theirs in {"tiny": {"l05h00q/a.parquet": b"theirs"}, "large": larger}.items():
        other = lambda branch=branch, theirs=theirs: hub.store.write(REPO, theirs, branch)  # noqa: E731
        between(monkeypatch, branch, other)
        assert "another push changed the branch" in push_refusal(dump, branch=branch)
        assert on_branch(hub, branch) == theirs
        hub.log.clear()
        assert push_dump(dump, REPO, branch).changed
        assert not hub.requests("lfs_put")
        assert on_branch(hub, branch) == files_of(dump)


def test_a_list_that_somebody_else_changes_meanwhile(hub, dump, monkeypatch):
    theirs = {"dump.json": b'{"model": "org/theirs"}', "l00h00q/a.parquet": b"x"}

    def meanwhile():
        hub.store.write(REPO, {f"note{len(hub.commits(REPO))}.md": b"x"})
        hub.store.write(REPO, theirs, "theirs")

    between(monkeypatch, "main", meanwhile, times=2)
    push_dump(dump, REPO, "tiny")
    text = hub.branch(REPO)["README.md"].decode()
    assert "`org/theirs`" in text
    assert "`org/tiny`" in text
    (dump / "l00h01q" / "data.parquet").rename(dump / "l00h01q" / "other.parquet")
    hub.store.write(REPO, {"README.md": None})
    between(monkeypatch, "main", meanwhile, times=1000)
    message = push_refusal(dump)
    assert "the dump is published, but listing it on main failed: another push" in message
    assert "run the same command again" in message
    assert on_branch(hub).keys() == files_of(dump).keys()


def test_the_same_dump_pushed_twice_at_once(hub, dump, monkeypatch):
    together = Barrier(2, timeout=PATIENCE)
    between(monkeypatch, "tiny", together.wait, times=2)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: push_dump(dump, REPO, "tiny"), range(2)))
    assert done[0].commit == done[1].commit == hub.branches(REPO)["tiny"]
    assert len(hub.commits(REPO, "tiny")) == 2
    assert on_branch(hub) == files_of(dump)
    assert "`org/tiny`" in hub.branch(REPO)["README.md"].decode()


def an_analysis(folder, heads=2, page=True):
    """Files of a finished analysis, by their path on the branch."""
    folder.mkdir()
    tables = {"head_metrics": "head_metrics.csv", "influences": "head_influences.csv"}
    layout = {"num_layers": 1, "num_q_heads": heads, "num_k_heads": 1}
    (folder / "run.json").write_text(json.dumps({"tables": tables, "head_layout": layout}))
    for name in tables.values():
        (folder / name).write_text("layer,q_head\n0,0\n")
    if page:
        (folder / "report.html").write_text("<p>")
    published = {f"analysis/{name}": data for name, data in files_of(folder).items()}
    (folder / "notes.txt").write_text("private")
    return published


def of_analysis(hub):
    return {name: data for name, data in on_branch(hub).items() if name.startswith("analysis/")}


def test_an_analysis_is_published_with_its_dump(hub, dump, tmp_path):
    layout = {"num_layers": 1, "num_q_heads": 2, "num_k_heads": 1}
    info = json.loads((dump / "dump.json").read_text())
    (dump / "dump.json").write_text(json.dumps({**info, **layout}))
    published = an_analysis(tmp_path / "run")
    push_dump(dump, REPO, "tiny", run=tmp_path / "run")
    assert of_analysis(hub) == published
    assert b"config_name: heads" in on_branch(hub)["README.md"]
    assert not push_dump(dump, REPO, "tiny").changed  # the same dump: the analysis stays
    other = an_analysis(tmp_path / "without a page", page=False)
    push_dump(dump, REPO, "tiny", run=tmp_path / "without a page")
    assert of_analysis(hub) == other
    write_columns(dump, HeadId(0, 1, "q"), **head_rows(4, 2, seed=9))
    (note,) = push_dump(dump, REPO, "tiny").notes
    assert "tables of the analysis before were removed" in note
    assert of_analysis(hub) == {}
    assert b"config_name: heads" not in on_branch(hub)["README.md"]
    an_analysis(tmp_path / "other", heads=9)
    assert "another dump (num_q_heads 9" in push_refusal(dump, run=tmp_path / "other")


def test_a_file_that_disappears_meanwhile(hub, dump, monkeypatch):
    push_dump(dump, REPO, "tiny")
    was = on_branch(hub)
    write_columns(dump, HeadId(0, 2, "q"), **head_rows(4, 2))
    for folder in ("l00h00q", "l00h02q"):  # on the branch, and not there yet
        file = dump / folder / "data.parquet"
        ready = RemoteBranch.create_missing

        def create_missing(remote, private, ready=ready, file=file):
            ready(remote, private)
            file.unlink()

        with monkeypatch.context() as patch:
            patch.setattr(RemoteBranch, "create_missing", create_missing)
            message = push_refusal(dump)
        assert message.startswith(f"{file}: cannot be read (")
        assert message.endswith("; the branch is unchanged")
        assert on_branch(hub) == was
        shutil.rmtree(file.parent)
