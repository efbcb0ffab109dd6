"""Who may write a dump where: starting, continuing, refusing, overwriting."""

from __future__ import annotations

import copy
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from captures import (
    PLAN,
    add,
    content,
    finish,
    make_capture,
    opened,
    segments,
    undisturbed,
)
from dumps import make_dump
from qk_dump.card import CARD_FILE, is_card
from qk_dump.manifest import DumpManifest, write_manifest
from qk_sniffer.pipeline.capture_folder import open_capture
from qk_toolkit.errors import ConfigError, OutputError


@pytest.fixture
def whole() -> dict[str, bytes]:
    return undisturbed(12)


def changed(field: str, value: object) -> dict[str, Any]:
    plan = copy.deepcopy(PLAN)
    *outer, last = field.split(".")
    inner = plan
    for name in outer:
        inner = inner[name]
    inner[last] = value
    return plan


def refusal(folder: Path, plan: dict[str, Any] = PLAN, **options: Any) -> str:
    before = content(folder) if folder.is_dir() else None
    with pytest.raises(ConfigError) as caught:
        open_capture(folder, plan, **options)
    assert (content(folder) if folder.is_dir() else None) == before
    assert str(caught.value).startswith(f"{folder}: ")
    return str(caught.value)


def begun(folder: Path) -> Path:
    with closing(opened(folder)) as capture:
        add(capture, range(3))
        capture.flush()
    return folder


@pytest.mark.parametrize("place", ["new", "new/deep/er"])
def test_a_folder_that_is_not_there_is_made(tmp_path: Path, place: str) -> None:
    capture = opened(tmp_path / place)
    assert not capture.complete
    assert capture.finished == frozenset()


def test_files_of_others_do_no_harm_and_are_kept(tmp_path: Path) -> None:
    for name in ("notes.txt", "README.md", "other/l00h00q/data.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"my own {name}")
    make_capture(tmp_path, 2)
    for name in ("notes.txt", "README.md", "other/l00h00q/data.parquet"):
        assert (tmp_path / name).read_text() == f"my own {name}"


def test_an_unfinished_capture_is_continued(tmp_path: Path, whole: dict[str, bytes]) -> None:
    begun(tmp_path)
    with closing(opened(tmp_path)) as capture:
        assert capture.finished == {0, 1, 2}
        assert not capture.complete
        add(capture, range(3, 12))
        finish(capture, 12)
        assert capture.complete
    assert content(tmp_path) == whole


def test_a_plan_may_hold_all_that_json_can(tmp_path: Path) -> None:
    plan = {"a": (1, 2), "b": {"ü": None}, "c": float("nan"), "d": "\udc80", 3: [True, 1.5]}
    open_capture(tmp_path, plan).close()  # type: ignore[arg-type]
    with closing(open_capture(tmp_path, plan)) as capture:  # type: ignore[arg-type]
        finish(capture, 0)
    assert open_capture(tmp_path, plan).complete  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("model.revision", "abc", 'model.revision (null then, "abc" now)'),
        ("sampler.base_rate", 4.0, "sampler.base_rate (2.0 then, 4.0 now)"),
        ("sampler", None, "sampler.type"),
        ("sampler.seed", 3, "sampler.seed (absent then, 3 now)"),
        ("versions.torch", "3.0", 'versions.torch ("2.9" then, "3.0" now)'),
    ],
)
def test_another_plan_is_refused_with_the_first_difference(
    tmp_path: Path, field: str, value: object, told: str
) -> None:
    message = refusal(begun(tmp_path), changed(field, value))
    if value is None:
        told = 'sampler ({"base_rate": 2.0, "type": "uniform"} then, null now)'
    assert f"holds a capture that differs in {told}" in message
    assert "another output.data_root, or add --overwrite" in message
    assert opened(tmp_path).finished == {0, 1, 2}


def test_a_finished_dump_of_the_same_plan_is_complete(tmp_path: Path) -> None:
    before = content(make_capture(tmp_path, 2))
    for plan in (PLAN, changed("versions.torch", "3.0"), changed("versions", None)):
        capture = open_capture(tmp_path, plan)
        assert capture.complete
        assert capture.missing(2) == []
        finish(capture, 2)
        capture.close()
    assert content(tmp_path) == before


def test_a_finished_dump_of_another_plan_is_refused(tmp_path: Path) -> None:
    make_capture(tmp_path, 2)
    message = refusal(tmp_path, changed("model.name", "big"))
    assert 'differs in model.name ("tiny" then, "big" now)' in message
    assert "add --overwrite" in message


def test_a_dump_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    make_dump(tmp_path / "heads", layers=1, n=5)
    assert "holds another dump (l00h00k)" in refusal(tmp_path / "heads")
    write_manifest(tmp_path, DumpManifest(model="tiny"))
    assert "holds another dump (dump.json)" in refusal(tmp_path)
    (tmp_path / "dump.json").unlink()
    (tmp_path / "examples.parquet").write_bytes(b"")
    assert "holds another dump (examples.parquet)" in refusal(tmp_path)


def test_a_plan_that_cannot_be_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    plan = begun(tmp_path) / ".capture" / "plan.json"
    for text in ("{", "3", ""):
        plan.write_text(text)
        with pytest.raises(ConfigError, match="overwrite") as caught:
            opened(tmp_path)
        assert str(plan) in str(caught.value)
    opened(tmp_path, overwrite=True).close()


def test_segments_without_a_plan_are_not_trusted(tmp_path: Path) -> None:
    (begun(tmp_path) / ".capture" / "plan.json").unlink()
    assert opened(tmp_path).finished == frozenset()


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is a file, not a folder" in refusal(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("place", ["/proc/nowhere/dump", "file/dump"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError) as caught:
        opened(tmp_path / place)
    assert str(caught.value).startswith(f"{tmp_path / place}: cannot be written")


def test_overwriting_removes_the_dump_and_nothing_else(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    make_capture(tmp_path, 2)
    (tmp_path / "l00h00q" / "shard-2.parquet").write_bytes(b"old")
    (tmp_path / "l07h00q").mkdir()
    (tmp_path / "l07h00q" / ".data.parquet.part-77").write_bytes(b"half")
    mine = ("notes.txt", "l00h00q/notes.txt", "sub/data.parquet", "l00h00q.txt")
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")

    with closing(opened(tmp_path, overwrite=True)) as capture:
        left = {name for name in content(tmp_path) if not name.startswith(".capture/")}
        assert left == set(mine)
        assert not (tmp_path / "l07h00q").exists()
        assert not capture.complete
        add(capture, range(12))
        finish(capture, 12)
    assert content(tmp_path) == {**whole, **dict.fromkeys(mine, b"mine")}


def test_overwriting_keeps_a_readme_and_data_behind_a_link(tmp_path: Path) -> None:
    elsewhere = make_dump(tmp_path / "elsewhere", layers=1, n=5)
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "README.md").write_text("mine")
    (dump / "l00h00q").symlink_to(elsewhere / "l00h00q")
    opened(dump, overwrite=True).close()
    assert (dump / "README.md").read_text() == "mine"
    assert not (dump / "l00h00q").exists()
    assert (elsewhere / "l00h00q" / "data.parquet").exists()


def test_overwriting_discards_an_unfinished_capture_and_a_broken_dump(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "dump.json").write_text("{")
    plan = changed("model.name", "other")
    with closing(open_capture(tmp_path, plan, overwrite=True)) as capture:
        assert capture.finished == frozenset()
    assert not (tmp_path / "dump.json").exists()
    refusal(tmp_path)


def test_overwriting_a_folder_that_is_not_there_starts(tmp_path: Path) -> None:
    assert not opened(tmp_path / "new", overwrite=True).complete


def test_processes_that_all_overwrite_share_one_capture(tmp_path: Path) -> None:
    make_capture(tmp_path, 2)
    with closing(opened(tmp_path, overwrite=True)) as first:
        add(first, [0])
        first.flush()
        with closing(opened(tmp_path, rank=1, overwrite=True)) as second:
            assert second.finished == {0}
        other = changed("model.name", "other")
        message = refusal(tmp_path, other, rank=1, overwrite=True)
        assert "another capture is writing here" in message


def test_the_card_is_ours_and_a_new_capture_replaces_it(tmp_path: Path) -> None:
    make_capture(tmp_path, 2)
    assert is_card(tmp_path / CARD_FILE)


def test_a_rank_is_taken_by_one_process(tmp_path: Path) -> None:
    with closing(opened(tmp_path)):
        for options in ({}, {"overwrite": True}):
            assert "another capture is writing here" in refusal(tmp_path, **options)
        opened(tmp_path, rank=1).close()
    opened(tmp_path).close()


def test_a_single_process_and_several_do_not_share_a_folder(tmp_path: Path) -> None:
    opened(tmp_path, rank=1).close()
    with closing(opened(tmp_path, alone=True)):
        assert "a single process is writing here" in refusal(tmp_path, rank=1)
        assert "another capture is writing here" in refusal(tmp_path, alone=True)
    with closing(opened(tmp_path, rank=1)):
        assert "several processes are writing here" in refusal(tmp_path, alone=True)
        assert "several processes" in refusal(tmp_path, alone=True, overwrite=True)
        opened(tmp_path, rank=2).close()
    opened(tmp_path, alone=True).close()


def test_what_dead_processes_were_writing_is_removed_and_no_more(tmp_path: Path) -> None:
    begun(tmp_path)
    place = tmp_path / ".capture" / "segments"
    for rank in (0, 1, 2):
        (place / f".00000009-r{rank}-ab.part-77").mkdir()
        (place / f".00000009-r{rank}-ab.part-77" / "rows-4k.arrow").write_bytes(b"half")
    with closing(opened(tmp_path, rank=2)):
        (place / ".00000009-r2-ab.part-77").mkdir()
        opened(tmp_path).close()
        assert [path.name for path in segments(tmp_path)][:-1] == [".00000009-r2-ab.part-77"]


def test_a_crash_after_the_last_file_is_noticed(tmp_path: Path, whole: dict[str, bytes]) -> None:
    with closing(opened(tmp_path)) as capture:
        add(capture, range(12))
        capture.flush()
        shutil.copytree(tmp_path / ".capture", tmp_path / "kept")
        finish(capture, 12)
    (tmp_path / "kept").rename(tmp_path / ".capture")

    assert opened(tmp_path).complete
    assert content(tmp_path) == whole

    (tmp_path / ".capture" / "segments").mkdir(parents=True)  # killed while removing it
    assert opened(tmp_path).complete
    assert content(tmp_path) == whole


def test_a_crash_between_the_heads_is_made_good(tmp_path: Path, whole: dict[str, bytes]) -> None:
    capture = opened(tmp_path)
    add(capture, range(12))

    def die(done: int, _: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(capture, 12, on_head=die)
    (tmp_path / "l00h00q" / ".data.parquet.part-77").write_bytes(b"half")
    (tmp_path / ".dump.json.part-77").write_bytes(b"half")
    capture.close()
    again = opened(tmp_path)
    assert again.missing(12) == []
    finish(again, 12)
    assert content(tmp_path) == whole


@pytest.mark.parametrize("target", ["mine", "nowhere"])
def test_a_link_in_place_of_the_work_folder_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / ".capture").symlink_to(tmp_path / target)
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"/\.capture: is a symbolic link, not a folder"):
            opened(tmp_path / "dump", overwrite=overwrite)
    assert (tmp_path / "mine" / "file").read_text() == "precious"
