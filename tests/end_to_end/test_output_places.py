"""Where tables may be written: never over a dump, nor over the tables of another run."""

import json
import os
import shutil

import pytest

from attention_plasticity.cli import main
from commands_here import analyze_here
from dumps import make_dump
from helpers.run_tables import write_run
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.manifest import DumpManifest, write_manifest
from qk_dump.side_files import Example, write_examples


def make_whole_dump(root, n=40):
    """A dump with every file that a capture writes."""
    make_dump(root, layers=1, q_heads=2, k_heads=1, n=n)
    write_manifest(root, DumpManifest(num_layers=1, num_q_heads=2, num_k_heads=1))
    write_examples(root, [Example(0, "a", 4096, "x")])
    (root / "README.md").write_text("mine")
    return root


def in_process(*words):
    return main(["analyze", "--max_workers", "1", *(str(word) for word in words)])


def content(root):
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


PLACES = [
    "dump/l00h00q",
    "dump/l07h00k",
    "dump/.capture",
    "out/../dump/./l00h00q",
    "link/l00h00q",
    "sibling/l00h00q/out",
]


@pytest.mark.parametrize("place", PLACES)
def test_results_are_not_put_into_a_part_of_a_dump(place, tmp_path, capsys):
    dump = make_whole_dump(tmp_path / "dump")
    shutil.copytree(dump, tmp_path / "sibling")
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(dump)
    before = content(tmp_path)
    assert in_process("--dataset_local_root", dump, "--output_dir", f"{tmp_path}/{place}") == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "is inside a dump" in told
    assert content(tmp_path) == before


def test_a_page_never_takes_the_place_of_a_dumps_file(tmp_path, capsys):
    dump, out = make_whole_dump(tmp_path / "dump"), write_run(tmp_path / "out")
    before = content(dump)
    for place in ("README.md", "dump.json", "l00h00q/report.html"):
        assert main(["report", str(out), "--output", str(dump / place)]) == 2
        assert "is inside a dump" in capsys.readouterr().err
    assert content(dump) == before


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("dump.json", "holds a dump (dump.json)"),
        ("l03h00q/data.parquet", "holds a dump (l03h00q)"),
        (".capture/plan.json", "holds a dump (.capture)"),
        ("study.json", "holds a study (study.json)"),
    ],
)
def test_results_are_not_put_beside_the_output_of_another_command(name, told, tmp_path, capsys):
    dump, out = make_whole_dump(tmp_path / "dump"), tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("{}")
    before = content(tmp_path)
    assert in_process("--dataset_local_root", dump, "--output_dir", out) == 2
    message = f"error: output_dir: {out}: {told}; choose another folder"
    assert capsys.readouterr().err.splitlines()[-1] == message
    assert content(tmp_path) == before


# tables of others


@pytest.mark.parametrize("name", ["head_metrics.csv", "head_kernel.csv", "run.json"])
def test_tables_without_records_are_not_replaced(name, tmp_path, capsys):
    """They may be of another program or version, or their records were removed."""
    dump, out = make_whole_dump(tmp_path / "dump"), tmp_path / "out"
    out.mkdir()
    (out / name).write_text("someone's work")
    assert in_process("--dataset_local_root", dump, "--output_dir", out) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"error: {out / name}: exists, and the records of its heads are not in")
    assert content(out) == {str(out / name): b"someone's work"}


def test_a_run_json_moves_no_file_of_others(tmp_path):
    dump, out, mine = make_whole_dump(tmp_path / "dump"), tmp_path / "out", tmp_path / "mine.csv"
    words = ("--dataset_local_root", dump, "--output_dir", out)
    assert in_process(*words) == 0
    table = (out / "head_metrics.csv").read_bytes()
    mine.write_bytes(table)
    info = json.loads((out / "run.json").read_text())
    info["tables"]["head_metrics"] = str(mine)
    (out / "run.json").write_text(json.dumps(info))
    (out / "head_metrics.csv").write_text("changed")
    (dump / "l00h01q" / "data.parquet").unlink()  # the tables are written again
    assert in_process(*words) == 1
    assert mine.read_bytes() == table
    assert (out / "head_metrics.csv").read_bytes() == table[: table.rindex(b"\n0,1,0") + 1]


# names


@pytest.mark.parametrize("given", ["..", "sub/.."])
def test_results_are_named_after_the_folder_that_is_meant(given, tmp_path, monkeypatch, capsys):
    dump = make_whole_dump(tmp_path / "dump")
    (dump / "sub").mkdir()
    monkeypatch.chdir(dump / "sub" if given == ".." else dump)
    assert in_process("--dataset_local_root", given, "--dry_run") == 0
    assert "Output       results/dump\n" in capsys.readouterr().out


def test_a_path_that_leaves_no_room_for_records_is_refused_first(tmp_path):
    dump = make_whole_dump(tmp_path / "dump")
    limit = os.pathconf(tmp_path, "PC_PATH_MAX")
    place = tmp_path
    while limit - len(str(place)) > 260:
        place = place / ("d" * 200)
    place = place / ("e" * (limit - len(str(place)) - 30))
    done = analyze_here("--dataset_local_root", dump, "--output_dir", place)
    assert done.returncode == 2
    assert "cannot be written: File name too long" in done.stderr
