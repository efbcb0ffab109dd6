"""Folders of exports: complete or absent, and never over files of others."""

import hashlib
import json

import pytest

from attention_plasticity.export.folder import Content, text_file, write_folder
from commands_here import run_here
from helpers.export_dumps import full_dump, provenance
from qk_toolkit.errors import ConfigError, OutputError


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return full_dump(tmp_path_factory.mktemp("folder") / "dump")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_provenance_has_all_that_a_reader_asks(dump, tmp_path):
    out = tmp_path / "out"
    assert run_here("export", dump, out, "--to", "q-filters").returncode == 0
    assert names(out) == ["PROVENANCE.json", "config.json", "model.safetensors"]
    facts = provenance(out)
    assert facts["made_by"] == "attention-plasticity export"
    assert facts["format"] == "q-filters"
    assert facts["model"] == "owner/tiny"
    assert facts["command"] == f"attention-plasticity export {dump} {out} --to q-filters"
    assert {"python", "attention-plasticity", "numpy", "pyarrow"} <= {*facts["versions"]}
    assert [(head["layer"], head["head"]) for head in facts["heads"]] == [
        (layer, head) for layer in range(2) for head in range(4)
    ]
    for head in facts["heads"]:
        assert head["rows"] == 60
        assert 0 < head["mean_relative_error"] < 1
        assert 0 < head["covariance_relative_error"] < 1
        assert 0 < head["second_singular_value_ratio"] < 1
    for name in ("config.json", "model.safetensors"):
        assert facts["sha256"][name] == hashlib.sha256((out / name).read_bytes()).hexdigest()


def test_an_earlier_export_is_replaced_on_request(dump, tmp_path):
    out = tmp_path / "out"
    assert run_here("export", dump, out, "--to", "q-filters").returncode == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    done = run_here("export", dump, out, "--to", "triattention")
    assert done.returncode == 2
    assert "exists; give --overwrite to replace it" in done.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    done = run_here("export", dump, out, "--to", "triattention", "--overwrite", "true")
    assert done.returncode == 0, done.stderr
    assert names(out) == ["PROVENANCE.json", "triattention.pt"]
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("kind", ["other", "no provenance", "foreign provenance"])
def test_files_of_others_are_never_replaced(dump, tmp_path, kind):
    out = tmp_path / "out"
    assert run_here("export", dump, out, "--to", "q-filters").returncode == 0
    if kind == "other":
        (out / "notes.txt").write_text("mine")
    elif kind == "no provenance":
        (out / "PROVENANCE.json").unlink()
    else:
        (out / "PROVENANCE.json").write_text(json.dumps({"made_by": "me", "sha256": {}}))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for flags in ((), ("--overwrite",)):
        done = run_here("export", dump, out, "--to", "q-filters", *flags)
        assert done.returncode == 2
        assert "has files that export did not write" in done.stderr
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_empty_folder_is_used_and_a_file_is_not(dump, tmp_path):
    (tmp_path / "empty").mkdir()
    assert run_here("export", dump, tmp_path / "empty", "--to", "q-filters").returncode == 0
    (tmp_path / "file").write_text("mine")
    done = run_here("export", dump, tmp_path / "file", "--to", "q-filters", "--overwrite")
    assert done.returncode == 2
    assert "is a file; the output is a folder" in done.stderr
    done = run_here("export", dump, "s3://bucket/out", "--to", "q-filters")
    assert done.returncode == 2
    assert "is a URL; a path on this machine is needed here" in done.stderr


def test_a_failure_leaves_the_folder_as_it_was(tmp_path):
    out = tmp_path / "out"

    def full(path):
        path.write_text("2")
        raise OSError(28, "No space left on device")

    write_folder(out, Content({"a": text_file("1")}, []), {}, "first", overwrite=False)
    with pytest.raises(OutputError, match="No space left on device"):
        write_folder(out, Content({"a": full}, []), {}, "second", overwrite=True)
    assert (out / "a").read_text() == "1"
    with pytest.raises(ConfigError, match="exists; give --overwrite"):
        write_folder(out, Content({"a": text_file("2")}, []), {}, "third", overwrite=False)
    assert (out / "a").read_text() == "1"
    assert provenance(out)["command"] == "first"
    assert names(tmp_path) == ["out"]


def test_a_url_is_read_like_a_folder(dump, tmp_path):
    from fsspec import filesystem

    memory = filesystem("memory")
    memory.put(str(dump), "/exported-dump", recursive=True)
    try:
        for place, name in ((dump, "a"), ("memory://exported-dump", "b")):
            assert run_here("export", place, tmp_path / name, "--to", "q-filters").returncode == 0
    finally:
        memory.rm("/exported-dump", recursive=True)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert one == other
