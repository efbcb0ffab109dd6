"""Who may write a dump where, and chunks and who runs which.

Every `Work` stands for a process. Its batches are made, but the model is not run.
"""

import copy
import shutil
from contextlib import ExitStack
from dataclasses import replace

import pytest

from captures import OUTLINE, PLAN, complete, content, make_capture, opened, save, undisturbed
from dumps import make_dump
from qk_dump.manifest import DumpManifest, write_manifest
from qk_sniffer.capture import folder
from qk_sniffer.capture.description import capture_plan
from qk_sniffer.capture.folder import open_capture, plan_in, unfinished_capture
from qk_sniffer.capture.outline import Outline
from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.segments import read_segments, saved_chunks
from qk_sniffer.capture.setup import prepare
from qk_sniffer.capture.work import Work
from qk_sniffer.config import make_config
from qk_toolkit.errors import ConfigError, DumpError


def changed(field, value):
    plan = copy.deepcopy(PLAN)
    *outer, last = field.split(".")
    inner = plan
    for name in outer:
        inner = inner[name]
    inner[last] = value
    return plan


def refusal(folder, plan=PLAN, **options):
    before = content(folder) if folder.is_dir() else None
    with pytest.raises(ConfigError) as caught:
        open_capture(folder, plan, OUTLINE, **options)
    assert (content(folder) if folder.is_dir() else None) == before
    assert str(caught.value).startswith(f"{folder}: ")
    return str(caught.value)


def begun(folder):
    capture = opened(folder)
    save(capture, range(3))
    return folder


def test_a_capture_is_started_and_continued(tmp_path):
    folder = tmp_path / "new" / "deep" / "er"
    begun(folder)
    capture = open_capture(folder, PLAN, replace(OUTLINE, chunk_size=99))
    assert not capture.complete
    assert capture.chunk_size == 1  # as it was when the capture began
    assert saved_chunks(folder) == {0, 1, 2}
    save(capture, range(3, 7))
    complete(capture, 7)
    assert capture.complete
    assert content(folder) == undisturbed(7)


@pytest.mark.parametrize("size", ["rubbish", "null", "[3]", "0", "1.5", "9" * 5000])
def test_a_damaged_outline_is_told(size, tmp_path):
    file = begun(tmp_path) / ".capture" / "outline.json"
    file.write_text(file.read_text().replace('"chunk_size": 1', f'"chunk_size": {size}'))
    with pytest.raises(ConfigError) as caught:
        open_capture(tmp_path, PLAN, OUTLINE)
    assert str(caught.value).startswith(f"{file}: cannot be read (")
    capture = open_capture(tmp_path, PLAN, replace(OUTLINE, chunk_size=2), overwrite=True)
    assert capture.chunk_size == 2


def test_another_plan_is_refused_with_the_first_difference(tmp_path):
    message = refusal(begun(tmp_path), changed("model.revision", "abc"))
    assert 'holds a capture that differs in model.revision (null then, "abc" now)' in message
    assert "another output.data_root, or add --overwrite" in message
    assert "versions.torch" in refusal(tmp_path, changed("versions.torch", "3.0"))


def test_a_finished_dump_of_the_same_plan_is_complete(tmp_path):
    before = content(make_capture(tmp_path, 2))
    for plan in (PLAN, changed("versions.torch", "3.0"), changed("versions", None)):
        capture = open_capture(tmp_path, plan, OUTLINE)
        assert capture.complete
    assert content(tmp_path) == before
    message = refusal(tmp_path, changed("model.name", "big"))
    assert 'differs in model.name ("tiny" then, "big" now)' in message


def test_a_dump_that_is_not_ours_is_refused(tmp_path):
    make_dump(tmp_path / "heads", layers=1, n=5)
    assert "holds another dump (l00h00k)" in refusal(tmp_path / "heads")
    write_manifest(tmp_path, DumpManifest(model="tiny"))
    assert "holds another dump (dump.json)" in refusal(tmp_path)
    (tmp_path / "dump.json").unlink()
    (tmp_path / "examples.parquet").write_bytes(b"")
    assert "holds another dump (examples.parquet)" in refusal(tmp_path)


def test_a_plan_that_cannot_be_read_is_refused_with_the_way_out(tmp_path):
    plan = begun(tmp_path) / ".capture" / "plan.json"
    for text in ("{", "3", ""):
        plan.write_text(text)
        with pytest.raises(ConfigError, match="overwrite") as caught:
            opened(tmp_path)
        assert str(plan) in str(caught.value)
    opened(tmp_path, overwrite=True)


def test_segments_without_a_plan_are_not_trusted(tmp_path):
    (begun(tmp_path) / ".capture" / "plan.json").unlink()
    with pytest.raises(ConfigError, match=r"/\.capture: has rows of texts, but no plan\.json"):
        opened(tmp_path)
    opened(tmp_path, overwrite=True)
    assert saved_chunks(tmp_path) == set()


def test_a_plan_stays_although_nothing_was_finished(tmp_path):
    """Another process may run its first text."""
    opened(tmp_path)
    assert plan_in(tmp_path) == PLAN
    assert "differs in model.name" in refusal(tmp_path, changed("model.name", "other"))
    capture = open_capture(tmp_path, changed("model.name", "other"), OUTLINE, overwrite=True)
    assert plan_in(tmp_path) == capture.plan


def test_what_the_end_needs_is_on_the_disk(tmp_path):
    assert unfinished_capture(begun(tmp_path / "a")).outline == OUTLINE
    more = replace(OUTLINE, chunk_size=5, texts=100)
    opened_again = open_capture(tmp_path / "a", PLAN, more)
    assert opened_again.outline == replace(more, chunk_size=1)  # texts were added
    assert unfinished_capture(tmp_path / "a").outline == opened_again.outline
    assert unfinished_capture(make_capture(tmp_path / "b", 2)).complete
    with pytest.raises(ConfigError, match=r"finish: .*holds no capture"):
        unfinished_capture(tmp_path)


def test_overwriting_removes_the_dump_and_nothing_else(tmp_path):
    make_capture(tmp_path, 2)
    (tmp_path / "l00h00q" / "shard-2.parquet").write_bytes(b"old")
    (tmp_path / "l07h00q").mkdir()
    (tmp_path / "l07h00q" / ".data.parquet.part-77").write_bytes(b"half")
    mine = ("notes.txt", "l00h00q/notes.txt", "sub/data.parquet", "l00h00q.txt")
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    capture = opened(tmp_path, overwrite=True)
    left = {name for name in content(tmp_path) if not name.startswith(".capture/")}
    assert left == set(mine)
    assert not (tmp_path / "l07h00q").exists()
    save(capture, range(7))
    complete(capture, 7)
    assert content(tmp_path) == {**undisturbed(7), **dict.fromkeys(mine, b"mine")}


def test_nothing_is_overwritten_while_a_process_works(tmp_path):
    make_capture(tmp_path, 2)
    first = opened(tmp_path, overwrite=True)
    save(first, [0])
    for lock in (first.lock_chunk(1), first.lock_to_finish()):
        for plan in (PLAN, changed("model.name", "other")):
            message = refusal(tmp_path, plan, overwrite=True)
            assert "a capture is writing here. Wait until it ends" in message
        lock.release()
    opened(tmp_path, overwrite=True)
    assert saved_chunks(tmp_path) == set()


def test_a_chunk_is_locked_by_one_process(tmp_path):
    first, second = opened(tmp_path), opened(tmp_path)
    lock = first.lock_chunk(4)
    assert second.lock_chunk(4) is None
    assert not second.has_free_chunk([4])
    assert second.has_free_chunk([4, 5])
    lock.release()
    assert second.lock_chunk(4) is not None
    save(first, [0])
    complete(first, 1)
    assert second.lock_chunk(5) is None  # the dump is complete
    assert second.lock_to_finish() is None
    assert not second.is_open
    assert content(tmp_path) == undisturbed(1)


def test_a_process_that_begins_when_the_dump_is_written_adds_nothing(tmp_path, monkeypatch):
    first = opened(tmp_path)
    save(first, range(7))
    begin = folder._begin

    def late(*given):
        complete(first, 7)
        return begin(*given)

    monkeypatch.setattr(folder, "_begin", late)
    assert opened(tmp_path).complete
    assert content(tmp_path) == undisturbed(7)


def test_a_crash_after_the_last_file_is_noticed(tmp_path):
    capture = opened(tmp_path)
    save(capture, range(7))
    shutil.copytree(tmp_path / ".capture", tmp_path / "kept")
    complete(capture, 7)
    (tmp_path / "kept").rename(tmp_path / ".capture")
    assert opened(tmp_path).complete
    assert content(tmp_path) == undisturbed(7)
    (tmp_path / ".capture" / "segments").mkdir(parents=True)  # killed while removing it
    assert opened(tmp_path).complete
    assert content(tmp_path) == undisturbed(7)


def test_a_link_in_place_of_the_work_folder_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / ".capture").symlink_to(tmp_path / "mine")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"/\.capture: is a symbolic link, not a folder"):
            opened(tmp_path / "dump", overwrite=overwrite)
    assert (tmp_path / "mine" / "file").read_text() == "precious"


def test_overwriting_keeps_a_readme_and_data_behind_a_link(tmp_path):
    elsewhere = make_dump(tmp_path / "elsewhere", layers=1, n=5)
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "README.md").write_text("mine")
    (dump / "l00h00q").symlink_to(elsewhere / "l00h00q")
    opened(dump, overwrite=True)
    assert (dump / "README.md").read_text() == "mine"
    assert not (dump / "l00h00q").exists()
    assert (elsewhere / "l00h00q" / "data.parquet").exists()


LENGTHS = [30, 10, 40, 7, 20, 50, 5]


def setup_of(model, texts, batch_size=1, **dataset):
    config = make_config(
        dataset={"path": str(texts), **dataset},
        model={"name": str(model)},
        output={"data_root": "unused"},
        inference={"batch_size": batch_size},
        capture={"sampler": {"type": "all"}, "layers": [0], "heads": [0]},
    )
    return prepare(config, Ranks())


@pytest.fixture(scope="module")
def setup(model, texts):
    return setup_of(model, texts)


class Processes:
    """Processes of a capture in one folder."""

    def __init__(self, folder, size=1):
        self.folder, self.size = folder, size
        self.captures = []
        self.stack = ExitStack()

    def start(self, setup):
        capture = open_capture(self.folder, capture_plan(setup), Outline(self.size))
        self.captures.append(capture)
        work = Work(setup, capture)
        self.stack.callback(work.close)
        return work


@pytest.fixture
def processes(tmp_path):
    started = Processes(tmp_path / "dump")
    with started.stack:
        yield started


def texts_of(step):
    return step.batch.texts.examples.tolist()


def run(work):
    """Run all that a process can, without rows; the texts of every batch."""
    found = []
    for step in work.steps():
        found.append(texts_of(step))
        step.claim.add(step.batch, {})
    return found


@pytest.mark.parametrize("size", [1, 3, 9])
def test_processes_run_every_text_once(setup, processes, size):
    processes.size = size
    first, second = processes.start(setup), processes.start(setup)
    steps = first.steps()
    held = next(steps)
    assert 5 in texts_of(held) or size > 1
    others = run(second)
    held.claim.add(held.batch, {})
    ran = [texts_of(held)]
    for step in steps:
        ran.append(texts_of(step))
        step.claim.add(step.batch, {})
    texts = sorted(text for batch in ran + others for text in batch)
    assert texts == [*range(7)]
    seen = []
    assert not first.wait(lambda: seen.extend(first.saved_by_others()))
    assert {example.example_id for segment in seen for example in segment.examples} >= {
        text for batch in others for text in batch
    }
    assert first.num_chunks == -(-len(LENGTHS) // size) == len(saved_chunks(processes.folder))
    saved = [one for segment in read_segments(processes.folder) for one in segment.examples]
    assert [one.example_id for one in saved] == [*range(len(LENGTHS))]
    assert first.saw_others or second.saw_others


def test_texts_that_come_after_the_end_of_a_capture_remove_no_segment(
    setup, processes, monkeypatch
):
    """They are read in a thread, which may still wait for them when another process continues."""
    late, other = processes.start(setup), processes.start(setup)
    between = type(setup.texts).between

    def slow(texts, start, end):
        monkeypatch.undo()
        late.close()
        run(other)
        return between(texts, start, end)

    monkeypatch.setattr(type(setup.texts), "between", slow)
    assert list(late.steps()) == []
    assert saved_chunks(processes.folder) == {*range(len(LENGTHS))}


def test_a_damaged_segment_is_refused_and_an_unfinished_one_run_again(setup, processes):
    run(processes.start(setup))
    place = processes.folder / ".capture" / "segments"
    (place / "00002" / "segment.json").write_text("{")
    (place / ".00004.part-77-ab").mkdir()
    shutil.rmtree(place / "00004")
    with pytest.raises(DumpError, match=r"00002: is damaged .* Remove this folder and run"):
        processes.start(setup)
    shutil.rmtree(place / "00002")
    work = processes.start(setup)
    assert work.texts_done == len(LENGTHS) - 2
    assert run(work) == [[2], [4]]
    assert not list(place.glob(".*"))


def test_a_process_that_is_stopped_blocks_its_own_chunk_alone(setup, processes):
    """As with SIGSTOP: it holds its lock and does nothing."""
    stopped, other = processes.start(setup), processes.start(setup)
    [held] = texts_of(next(stopped.steps()))
    assert sorted(run(other)) == [[text] for text in range(len(LENGTHS)) if text != held]
    assert not other.capture.has_free_chunk([held])
    stopped.close()  # or is killed
    assert other.wait(lambda: None)
    assert run(other) == [[held]]
