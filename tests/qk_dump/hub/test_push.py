"""Publishing a dump: the real client against the loopback Hub."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import hub_server
from dumps import add_attended, head_rows, make_dump
from hub_fault_table import files_of, small_dump
from hub_server import HubServer
from pushes import REPO, on_branch, refusal
from pushes import dump as dump  # the fixtures
from pushes import waits as waits
from qk_dump import card
from qk_dump.card import is_card
from qk_dump.hub import push as hub_push
from qk_dump.hub.push import push_dump
from qk_dump.layout import HeadId
from qk_dump.writer import write_head
from qk_sniffer.pipeline.capture_folder import open_capture

pytestmark = pytest.mark.filterwarnings(hub_server.CLIENT_WARNINGS)
hub = hub_server.hub


@pytest.mark.parametrize("private", [False, True])
def test_a_first_push_makes_dataset_branch_and_list(
    hub: HubServer, dump: Path, private: bool
) -> None:
    heard: list[tuple[int, int]] = []

    done = push_dump(
        dump, REPO, "tiny", private=private, on_bytes=lambda *bytes_: heard.append(bytes_)
    )

    assert hub.store.repos[REPO].private is private
    assert on_branch(hub) == files_of(dump)
    assert set(hub.branch(REPO)) == {".gitattributes", "README.md"}
    assert "| `tiny` | `org/tiny` | `4` |" in hub.branch(REPO)["README.md"].decode()
    assert done == hub_push.Pushed(done.place, hub.branches(REPO)["tiny"], True)
    assert len(hub.commits(REPO, "tiny")) == 2  # the Hub's own, and ours
    total = sum(len(data) for data in files_of(dump).values())
    assert (heard[0], heard[-1]) == ((0, total), (total, total))


def test_pushing_again_changes_and_sends_nothing(hub: HubServer, dump: Path) -> None:
    first = push_dump(dump, REPO, "tiny")
    before, branches = len(hub.log), hub.branches(REPO)

    again = push_dump(dump, REPO, "tiny")

    assert (again.commit, again.changed) == (first.commit, False)
    assert hub.branches(REPO) == branches
    asked = {entry.endpoint for entry in hub.log[before:]}
    assert not asked & {"commit", "preupload", "lfs_batch", "lfs_put"}


def test_only_what_changed_is_sent(hub: HubServer, dump: Path, tmp_path: Path) -> None:
    push_dump(dump, REPO, "tiny")
    changed = write_head(dump, HeadId(0, 1, "q"), **head_rows(n=5, d=2))
    before = len(hub.log)

    assert push_dump(dump, REPO, "tiny").changed

    puts = [entry for entry in hub.log[before:] if entry.endpoint == "lfs_put"]
    assert [entry.bytes_in for entry in puts] == [changed.stat().st_size]
    assert on_branch(hub) == files_of(dump)
    assert len(hub.commits(REPO, "tiny")) == 3


def without_card(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files without the card, which a push makes for the heads that are there."""
    return {name: data for name, data in files.items() if name != "README.md"}


def test_files_of_the_earlier_dump_disappear_and_others_stay(hub: HubServer, dump: Path) -> None:
    push_dump(dump, REPO, "tiny")
    own = {"notes.md": b"mine", "l00h00q/why.md": b"mine", "plots/a.parquet": b"mine"}
    hub.store.write(REPO, own, "tiny")
    before = len(hub.commits(REPO, "tiny"))
    shutil.rmtree(dump / "l00h01q")
    (dump / "examples.parquet").unlink()
    (dump / "tokens.parquet").unlink()

    push_dump(dump, REPO, "tiny")

    assert without_card(on_branch(hub)) == without_card(files_of(dump) | own)
    assert b"l00h01q" not in on_branch(hub)["README.md"]
    assert len(hub.commits(REPO, "tiny")) == before + 1


def test_keys_drawn_by_attention_are_pushed_and_removed(hub: HubServer, dump: Path) -> None:
    add_attended(dump, d=2)
    push_dump(dump, REPO, "tiny")
    assert without_card(on_branch(hub)) == without_card(files_of(dump))
    assert b"attended-l00h00k" in on_branch(hub)["README.md"]
    assert "attended/l00h00k/data.parquet" in on_branch(hub)
    shutil.rmtree(dump / "attended")
    push_dump(dump, REPO, "tiny")
    assert on_branch(hub) == files_of(dump)
    (dump / "attended/l00h00k").mkdir(parents=True)
    assert "attended/l00h00k: holds no Parquet file" in refusal(dump)


def test_what_main_holds_does_not_come_to_the_branch(hub: HubServer, dump: Path) -> None:
    hub.store.write(REPO, {"model/l00h00q/data.parquet": b"of another", "notes.md": b"mine"})

    push_dump(dump, REPO, "tiny")

    assert on_branch(hub) == files_of(dump)
    assert hub.branch(REPO)["notes.md"] == b"mine"


def test_main_lists_every_branch_that_holds_a_dump(hub: HubServer, tmp_path: Path) -> None:
    hub.store.write(REPO, {"notes.md": b"no dump"}, "empty")
    hub.store.write(REPO, {"dump.json": b"{no JSON", "l00h00q/a.parquet": b"x"}, "odd")
    hub.store.write(REPO, {"model/l00h00q/a.parquet": b"x"}, "folder")
    for name in ("a|b", "team/big"):
        push_dump(small_dump(tmp_path / name, model=f"org/{name}"), REPO, name.replace("|", "-"))

    text = hub.branch(REPO)["README.md"].decode()

    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert lines == [
        r"| `a-b` | `org/a\|b` | `4` |",
        "| `folder` |  |  |",
        "| `odd` |  |  |",
        "| `team/big` | `org/team/big` | `4` |",
    ]
    assert f"hf://datasets/{REPO}@a-b\n" in text
    assert 'revision="a-b"' in text


def test_a_branch_may_have_a_slash(hub: HubServer, dump: Path) -> None:
    done = push_dump(dump, REPO, "team/big")
    assert str(done.place) == f"{REPO}@team%2Fbig"
    assert on_branch(hub, "team/big") == files_of(dump)
    text = hub.branch(REPO)["README.md"].decode()
    assert f"hf://datasets/{REPO}@team%2Fbig\n" in text
    assert 'revision="team/big"' in text


def test_a_card_of_their_own_is_kept(hub: HubServer, dump: Path) -> None:
    hub.store.write(REPO, {"README.md": b"# by hand"})
    (dump / "README.md").write_text("# also by hand")

    done = push_dump(dump, REPO, "tiny")

    assert hub.branch(REPO)["README.md"] == b"# by hand"
    assert len(done.notes) == 1
    assert "add the branch to it" in done.notes[0]
    assert (dump / "README.md").read_text() == "# also by hand"
    made = dump / "made.md"
    made.write_bytes(on_branch(hub)["README.md"])
    assert is_card(made)
    assert "config_name: l00h01q" in made.read_text()


def test_a_dump_without_manifest_examples_and_card(hub: HubServer, tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "plain", layers=1, q_heads=1, k_heads=1, n=3)
    push_dump(dump, REPO, "plain")
    files = on_branch(hub, "plain")
    assert files.pop("README.md").startswith(b"---\n")
    assert files == files_of(dump)
    assert "| `plain` |  |  |" in hub.branch(REPO)["README.md"].decode()


def test_the_only_model_folder_lies_in_the_branchs_root(hub: HubServer, tmp_path: Path) -> None:
    small_dump(tmp_path / "all" / "model")
    push_dump(tmp_path / "all", REPO, "tiny")
    assert on_branch(hub) == files_of(tmp_path / "all" / "model")


def test_nine_hundred_files_go_in_one_commit(hub: HubServer, tmp_path: Path) -> None:
    rows = write_head(tmp_path, HeadId(0, 0, "q"), **head_rows(n=4, d=2))
    for number in range(1, 900):
        folder = tmp_path / f"l{number // 30:02d}h{number % 30:02d}q"
        folder.mkdir()
        shutil.copy(rows, folder / "data.parquet")

    push_dump(tmp_path, REPO, "large")

    assert len(on_branch(hub, "large")) == 901
    assert len(hub.commits(REPO, "large")) == 2


def test_more_heads_than_the_viewer_shows_are_told(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card, "MOST_CONFIGS", 7)
    (note,) = push_dump(dump, REPO, "tiny").notes
    assert note.startswith("3 heads: ")
    assert "data_files=" in note


def between(
    monkeypatch: pytest.MonkeyPatch, branch: str, what: Callable[[], object], times: int = 1
) -> None:
    """Let something happen just before each of the next commits to a branch."""
    commit = hub_push._Remote.commit
    left = [what] * times

    def later(remote: Any, *given: Any) -> str:
        if remote.place.revision == branch and left:
            left.pop()()
        return commit(remote, *given)

    monkeypatch.setattr(hub_push._Remote, "commit", later)


def test_a_commit_of_somebody_else_meanwhile(
    hub: HubServer, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.store.write(REPO, {"l05h00q/a.parquet": b"old"}, "tiny")
    theirs = {"l07h00q/a.parquet": b"theirs"}
    between(monkeypatch, "tiny", lambda: hub.store.write(REPO, theirs, "tiny"))

    message = refusal(dump)

    assert "another push changed the branch" in message
    assert on_branch(hub) == {"l05h00q/a.parquet": b"old"} | theirs
    before = len(hub.log)
    assert push_dump(dump, REPO, "tiny").changed
    assert on_branch(hub) == files_of(dump)
    assert "lfs_put" not in {entry.endpoint for entry in hub.log[before:]}


def test_a_larger_dump_of_somebody_else_is_not_taken_for_ours(
    hub: HubServer, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = files_of(dump) | {"l07h00q/a.parquet": b"theirs"}
    between(monkeypatch, "tiny", lambda: hub.store.write(REPO, theirs, "tiny"))
    assert "another push changed the branch" in refusal(dump)
    assert on_branch(hub) == theirs


def test_a_list_that_somebody_else_changes_meanwhile_is_made_anew(
    hub: HubServer, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"dump.json": b'{"model": "org/theirs"}', "l00h00q/a.parquet": b"x"}
    steps = iter(
        [
            lambda: hub.store.write(REPO, theirs, "theirs"),
            lambda: hub.store.write(REPO, {"notes.md": b"theirs"}),
        ]
    )

    def meanwhile() -> None:
        hub.store.write(REPO, {f"note{len(hub.commits(REPO))}.md": b"x"})
        next(steps)()

    between(monkeypatch, "main", meanwhile, times=2)

    push_dump(dump, REPO, "tiny")

    text = hub.branch(REPO)["README.md"].decode()
    assert "`org/theirs`" in text
    assert "`org/tiny`" in text
    assert hub.branch(REPO)["notes.md"] == b"theirs"


def test_a_list_that_never_stays_ends_with_a_clear_line(
    hub: HubServer, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = iter(range(1000))
    other = lambda: hub.store.write(REPO, {"note.md": b"%d" % next(count)})  # noqa: E731
    between(monkeypatch, "main", other, times=1000)
    message = refusal(dump)
    assert "the dump is published, but listing it on main failed" in message
    assert "run the same command again" in message
    assert on_branch(hub) == files_of(dump)


def test_the_same_dump_pushed_twice_at_once(
    hub: HubServer, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Barrier(2, timeout=20)
    state = hub_push._Remote.state
    waited: list[str] = []

    def same_state(remote: Any) -> Any:
        found = state(remote)
        if remote.place.revision == "tiny" and len(waited) < 2:
            waited.append("")
            together.wait()
        return found

    monkeypatch.setattr(hub_push._Remote, "state", same_state)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: push_dump(dump, REPO, "tiny"), range(2)))

    assert done[0].commit == done[1].commit == hub.branches(REPO)["tiny"]
    assert len(hub.commits(REPO, "tiny")) == 2
    assert on_branch(hub) == files_of(dump)
    assert "`org/tiny`" in hub.branch(REPO)["README.md"].decode()


def test_an_unfinished_dump_is_not_sent(hub: HubServer, tmp_path: Path) -> None:
    open_capture(tmp_path / "new", {"model": "tiny"}).close()
    dump = small_dump(tmp_path / "new")
    assert "capture is not finished; run the same capture again" in refusal(dump)
    shutil.rmtree(dump / ".capture")
    (dump / "l09h00q").mkdir()
    message = refusal(dump)
    assert re.search("l09h00q: holds no Parquet file; .*again, or remove", message)
    assert not hub.log


def test_a_file_that_disappears_meanwhile(
    hub: HubServer, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_dump(dump, REPO, "tiny")
    was = on_branch(hub)
    (file,) = (dump / "l00h00q").iterdir()
    ready = hub_push._Remote.create_missing

    def create_missing(remote: Any, private: bool) -> None:
        ready(remote, private)
        file.unlink()

    monkeypatch.setattr(hub_push._Remote, "create_missing", create_missing)
    message = refusal(dump)
    assert str(file) in message
    assert "the branch is unchanged" in message
    assert on_branch(hub) == was
    (dump / "l00h02q").mkdir()
    file = write_head(dump, HeadId(0, 2, "q"), **head_rows(n=5, d=2))  # one that is not there yet
    (dump / "l00h00q").rmdir()
    assert f"{file}: cannot be read (it was deleted); the branch is unchanged" in refusal(dump)
    assert on_branch(hub) == was


def an_analysis(folder: Path, heads: int = 2, page: bool = True) -> dict[str, bytes]:
    """Files of a finished analysis, by their path on the branch."""
    folder.mkdir()
    tables = {"head_metrics": "head_metrics.csv", "influences": "head_influences.csv"}
    layout = {"num_layers": 1, "num_q_heads": heads, "num_k_heads": 1}
    (folder / "run.json").write_text(json.dumps({"tables": tables, "head_layout": layout}))
    for name in tables.values():
        (folder / name).write_text("layer,q_head\n0,0\n")
    (folder / "notes.txt").write_text("private")
    if page:
        (folder / "report.html").write_text("<p>")
    return {
        f"analysis/{path.name}": path.read_bytes()
        for path in folder.iterdir()
        if path.name != "notes.txt"
    }


def of_analysis(hub: HubServer) -> dict[str, bytes]:
    return {name: data for name, data in on_branch(hub).items() if name.startswith("analysis/")}


def test_an_analysis_is_published_with_its_dump(hub: HubServer, dump: Path, tmp_path: Path) -> None:
    layout = {"num_layers": 1, "num_q_heads": 2, "num_k_heads": 1}
    info = json.loads((dump / "dump.json").read_text())
    (dump / "dump.json").write_text(json.dumps({**info, **layout}))
    published = an_analysis(tmp_path / "run")
    push_dump(dump, REPO, "tiny", run=tmp_path / "run")
    assert of_analysis(hub) == published
    assert b"config_name: heads" in on_branch(hub)["README.md"]

    again = push_dump(dump, REPO, "tiny")  # the same dump: the analysis stays
    assert not again.changed
    other = an_analysis(tmp_path / "without a page", page=False)
    push_dump(dump, REPO, "tiny", run=tmp_path / "without a page")
    assert of_analysis(hub) == other

    shutil.copy(dump / "l00h00q" / "data.parquet", dump / "l00h01q" / "data.parquet")
    (note,) = push_dump(dump, REPO, "tiny").notes
    assert "tables of the analysis before were removed" in note
    assert of_analysis(hub) == {}
    assert b"config_name: heads" not in on_branch(hub)["README.md"]

    an_analysis(tmp_path / "other", heads=9)
    assert "another dump (num_q_heads 9" in refusal(dump, run=tmp_path / "other")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no run.json"),
        ("{", "cannot be read"),
        ("[]", "is not the file of an analysis"),
        ('{"head_layout": {}, "tables": {"a": "../secret.csv"}}', "expected names of CSV files"),
        ('{"head_layout": {}, "tables": {"a": "missing.csv"}}', "missing.csv"),
        ('{"head_layout": {}, "tables": {"a": "link.csv"}}', "outside the analysis"),
    ],
)
def test_a_folder_that_is_no_analysis(
    hub: HubServer, dump: Path, tmp_path: Path, content: str | None, said: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secret.csv").write_text("a")
    (run / "link.csv").symlink_to(tmp_path / "secret.csv")
    if content is not None:
        (run / "run.json").write_text(content)
    assert said in refusal(dump, run=run)
    assert REPO not in hub.store.repos
