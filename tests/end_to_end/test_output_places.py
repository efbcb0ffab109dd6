"""Where tables may be written: never over a dump, nor over the tables of another run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from attention_plasticity.cli import main
from commands import start
from commands_here import analyze_here, run_here
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.examples import Example, write_examples
from qk_dump.manifest import DumpManifest, write_manifest
from run_tables import write_run


def make_whole_dump(root: Path, n: int = 40) -> Path:
    """A dump with every file that a capture writes."""
    make_dump(root, layers=1, q_heads=2, k_heads=1, n=n)
    write_manifest(root, DumpManifest(num_layers=1, num_q_heads=2, num_k_heads=1))
    write_examples(root, [Example(0, "a", 4, "x")])
    (root / "README.md").write_text("mine")
    return root


def in_process(*words: object) -> int:
    return main(["analyze", "--max_workers", "1", *(str(word) for word in words)])


def content(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


PLACES = [
    "dump/dump.json",
    "dump/examples.parquet",
    "dump/tokens.parquet",
    "dump/README.md",
    "dump/l00h00q",
    "dump/l00h00q/data.parquet",
    "dump/l00h00q/table.csv",
    "dump/l00h00q/deep/er/table.csv",
    "dump/l07h00k/table.csv",
    "dump/.capture/table.csv",
    "dump/l00h00q/../dump.json",
    "out/../dump/./README.md",
    "link/examples.parquet",
    "link/l00h00q/table.csv",
    "head/table.csv",
    "file.csv",
    "sibling/dump.json",
    "sibling/l00h00q/table.csv",
    "out/.heads/table.csv",
]


@pytest.mark.parametrize("place", PLACES)
def test_no_table_takes_the_place_of_a_part_of_a_dump(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = make_whole_dump(tmp_path / "dump")
    shutil.copytree(dump, tmp_path / "sibling")
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(dump)
    (tmp_path / "head").symlink_to(dump / "l00h00q")
    (tmp_path / "file.csv").symlink_to(dump / "dump.json")
    before = content(tmp_path)
    flags = ["--dataset_local_root", str(dump), "--output_dir", str(tmp_path / "out")]
    for field in ("output_csv", "bucket_csv", "component_csv"):
        assert main(["analyze", *flags, f"--{field}", f"{tmp_path}/{place}"]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        phrase = "begin with a dot are reserved" if ".heads" in place else "is inside a dump"
        assert phrase in told
    assert content(tmp_path) == before


def test_results_are_not_put_into_a_heads_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = make_whole_dump(tmp_path / "dump")
    before = content(dump)
    for place in ("l00h00q", "l00h00q/out", "l44h00q"):
        flags = ["--dataset_local_root", str(dump), "--output_dir", str(dump / place)]
        assert main(["analyze", *flags]) == 2
        assert "is inside a dump" in capsys.readouterr().err
    assert main(["report", str(dump), "--output", str(dump / "dump.json")]) == 2
    assert content(dump) == before


def test_a_page_never_takes_the_place_of_a_dumps_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, out = make_whole_dump(tmp_path / "dump"), write_run(tmp_path / "out")
    for place in ("README.md", "dump.json", "l00h00q/report.html"):
        assert main(["report", str(out), "--output", str(dump / place)]) == 2
        assert "is inside a dump" in capsys.readouterr().err


def test_results_beside_the_heads_are_fine(tmp_path: Path) -> None:
    dump = make_whole_dump(tmp_path / "dump")
    for _ in range(2):
        assert in_process("--dataset_local_root", dump, "--output_dir", dump) == 0
        assert (dump / "head_metrics.csv").exists()


# one table, two runs


def test_a_table_of_another_run_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, shared = make_whole_dump(tmp_path / "dump"), tmp_path / "shared" / "m.csv"
    first = ("--dataset_local_root", dump, "--output_csv", shared, "--output_dir", tmp_path / "a")
    second = (*first, "--output_dir", tmp_path / "b", "--seed", 1)
    assert in_process(*first) == 0
    before = shared.read_bytes()
    for extra in ((), ("--overwrite",), ("--dry_run",)):
        capsys.readouterr()
        assert in_process(*second, *extra) == 2
        told = capsys.readouterr().err
        assert f"{shared}: exists, but is not a table of the run in {tmp_path / 'b'}" in told
        assert told.count("\n") == 1
    assert shared.read_bytes() == before
    assert not (tmp_path / "b").exists()
    assert main(["report", str(tmp_path / "a")]) == 0
    assert in_process(*first) == 0  # its own run may write it again
    assert in_process(*first, "--overwrite", "--seed", 2) == 0
    assert (tmp_path / "a" / "previous-1" / "m.csv").read_bytes() == before


def test_a_table_that_another_run_is_about_to_write_is_not_shared(tmp_path: Path) -> None:
    dump = make_whole_dump(tmp_path / "dump", n=6000)
    shared = tmp_path / "shared" / "m.csv"
    words = ("--dataset_local_root", dump, "--output_csv", shared, "--max_workers", 1)
    going = start("analyze", *words, "--output_dir", tmp_path / "a", stdout=subprocess.DEVNULL)
    while not (tmp_path / "a" / ".heads").exists():
        assert going.poll() is None
        time.sleep(0.005)
    going.send_signal(signal.SIGSTOP)  # holds its locks until the other run was refused
    refused = analyze_here(*words, "--output_dir", tmp_path / "b", "--seed", 1)
    going.send_signal(signal.SIGCONT)
    assert going.wait(timeout=120) == 0
    assert refused.returncode == 2
    assert f"{shared}: another run is writing this table" in refused.stderr
    assert run_here("report", tmp_path / "a").returncode == 0


def test_a_run_json_moves_no_file_of_others(tmp_path: Path) -> None:
    dump, out, mine = make_whole_dump(tmp_path / "dump"), tmp_path / "out", tmp_path / "mine.csv"
    words = ("--dataset_local_root", dump, "--output_dir", out)
    assert in_process(*words) == 0
    table = out / "head_metrics.csv"
    mine.write_bytes(table.read_bytes())
    info = json.loads((out / "run.json").read_text())
    info["tables"]["head_metrics"] = str(mine)
    (out / "run.json").write_text(json.dumps(info))
    assert in_process(*words, "--overwrite") == 0
    assert mine.exists()


# names


@pytest.mark.parametrize("given", [".", "..", "../dump", "sub/.."])
def test_results_are_named_after_the_folder_that_is_meant(
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dump = make_whole_dump(tmp_path / "dump")
    (dump / "sub").mkdir()
    monkeypatch.chdir(dump / "sub" if given == ".." else dump)
    assert in_process("--dataset_local_root", given, "--dry_run") == 0
    assert "Output       results/dump\n" in capsys.readouterr().out


def test_a_dump_in_the_root_of_a_file_system_has_a_name() -> None:
    from qk_dump.layout import Dump

    assert Dump(Path("/"), {}).name == "dump"
    assert Dump(Path("/.."), {}).name == "dump"


LONG = "x" * 300
NEARLY = "x" * 245  # a name that can be written, but not the draft beside it
DEEP = "/".join(["d" * 200] * 25)


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "--dataset_local_root", "{dump}", "--output_dir", "{name}"],
        ["analyze", "--dataset_local_root", "{dump}", "--output_csv", "{name}.csv"],
        ["analyze", "--dataset_local_root", "{dump}", "--dry_run", "--output_dir", "{name}"],
        ["analyze", "--dataset_local_root", "{name}"],
        ["analyze", "--config", "{name}.yaml"],
        ["plot", "map", "{run}", "--output", "{name}.png"],
        ["plot", "map", "{name}", "--output", "x.png"],
        ["plot", "all", "{run}", "--output_dir", "{name}"],
        ["report", "{run}", "--output", "{name}.html"],
        ["report", "{name}"],
        ["compare", "{run}", "{name}"],
        ["compare", "{run}", "{run}", "--labels", "a,b", "--output_dir", "{name}"],
        ["compare", "{run}", "{run}", "--labels", "a,b", "--scores", "{name}"],
        ["demo", "--output_dir", "{name}"],
    ],
    ids=lambda words: "-".join(word for word in words if "{" not in word),
)
def test_names_that_are_too_long_are_refused_before_any_work(
    words: list[str],
    long_names: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dump, finished = long_names
    monkeypatch.chdir(tmp_path)
    of_a_file = ("{name}." in words[-1] and words[0] != "analyze") or "output_csv" in words[-2]
    for name in (LONG, DEEP, NEARLY) if of_a_file else (LONG, DEEP):
        given = [word.format(dump=dump, run=finished, name=name) for word in words]
        assert main(given) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: ")
        assert told.count("\n") == 1
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dump and its run."""
    folder = tmp_path_factory.mktemp("names")
    dump = make_whole_dump(folder / "dump")
    return dump, write_run(folder / "run")


def test_a_path_that_leaves_no_room_for_records_is_refused_first(tmp_path: Path) -> None:
    dump = make_whole_dump(tmp_path / "dump")
    limit = os.pathconf(tmp_path, "PC_PATH_MAX")
    place = tmp_path
    while limit - len(str(place)) > 260:
        place = place / ("d" * 200)
    place = place / ("e" * (limit - len(str(place)) - 30))
    done = analyze_here("--dataset_local_root", dump, "--output_dir", place)
    assert done.returncode == 2
    assert "cannot be written: File name too long" in done.stderr
