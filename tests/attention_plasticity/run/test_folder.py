"""The folder of a run: what is refused before any work, full disks, and the tables themselves."""

import csv
import hashlib
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.config import make_config
from attention_plasticity.head_analysis import analyze_head
from attention_plasticity.metrics import HEAD_METRICS
from attention_plasticity.run import write
from attention_plasticity.run.folder import RunFolder
from dumps import add_rotary, make_dump
from qk_toolkit.errors import ConfigError, OutputError
from qk_toolkit.watcher import Watcher
from runs_here import analyse, computed, run_info, tables


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump") / "dump"
    return add_rotary(make_dump(folder, layers=1, q_heads=2, k_heads=1, n=60, d=4), 1, 4)


def content(root):
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


# places


class Bars(Watcher):
    """Keeps the names of what was shown with a bar."""

    def __init__(self):
        self.names = set[str]()

    def show(self, task, done, total, *, in_bytes=False):
        self.names.add(task)


def make_file(out):
    out.write_text("a file")


def make_table_folder(out):
    (out / ".heads").mkdir(parents=True)
    (out / "head_metrics.csv").mkdir()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_file, "cannot be written: "),
        (make_table_folder, r"head_metrics\.csv: is a folder, not a file"),
    ],
)
def test_a_folder_that_cannot_be_one_is_refused(make, reason, dump, tmp_path):
    dump = Path(shutil.copytree(dump, tmp_path / "dump"))
    (dump / "examples.parquet").write_text("junk")
    make(tmp_path / "out")
    before, bars = content(tmp_path), Bars()
    with pytest.raises(ConfigError, match=f"{reason}.*Choose another output_dir"):
        analyse(dump, tmp_path / "out", watcher=bars)
    assert bars.names == set()  # the texts of heads are not read
    assert content(tmp_path) == before


# paths of single tables


def test_the_folder_of_the_first_table_is_that_of_the_run():
    paths = {"component_csv": "c/weights.csv", "bucket_csv": "b/head_bucket_plasticity.csv"}
    place = RunFolder.of(make_config(paths), "dump")
    assert place.folder == Path("b")
    assert place.copies == {"component_csv": Path("c/weights.csv")}
    place = RunFolder.of(make_config(paths, output_csv="heads.csv"), "dump")
    assert place.folder == Path()
    assert list(place.copies) == ["output_csv", "bucket_csv", "component_csv"]
    place = RunFolder.of(make_config(paths, output_dir="s3://bucket/run"), "dump")
    assert (place.url, len(place.copies)) == ("s3://bucket/run", 2)


def test_a_copy_follows_its_table_also_when_nothing_is_computed(dump, tmp_path):
    out, copy, later = tmp_path / "out", tmp_path / "a" / "heads.csv", tmp_path / "b" / "heads.csv"
    analyse(dump, out, output_csv=str(copy), heads=[0])
    assert copy.read_bytes() == (out / "head_metrics.csv").read_bytes()
    analyse(dump, out, output_csv=str(copy))
    assert copy.read_bytes() == (out / "head_metrics.csv").read_bytes()
    assert computed(dump, out, output_csv=str(later)) == []
    assert later.read_bytes() == copy.read_bytes()
    assert "output_csv" not in run_info(out)["config"]


def test_a_copy_does_not_outlast_its_table(dump, tmp_path):
    dump = Path(shutil.copytree(dump, tmp_path / "dump"))
    out, copy = tmp_path / "out", tmp_path / "heads.csv"
    analyse(dump, out, output_csv=str(copy))
    (dump / "l00h00k" / "data.parquet").write_text("junk")
    analyse(dump, out, output_csv=str(copy))
    assert not (out / "head_metrics.csv").exists()
    assert not copy.exists()


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        ({"output_csv": "notes.txt"}, "output_csv: notes.txt: exists, and is not a table"),
        ({"bucket_csv": "out/run.json"}, "bucket_csv: out/run.json: is another file of the run"),
        (
            {"bucket_csv": "both.csv", "component_csv": "out/../both.csv"},
            "component_csv: out/../both.csv: is another file of the run",
        ),
        ({"output_csv": "out"}, "output_csv: out: is a folder, not a file"),
        ({"output_csv": "dump/l00h00q/x.csv"}, "dump/l00h00q/x.csv: is inside a dump"),
        ({"output_csv": "s3://bucket/x.csv"}, "output_csv: expected a path on this machine, got"),
    ],
)
def test_a_copy_replaces_no_other_file(paths, told, dump, tmp_path, monkeypatch):
    shutil.copytree(dump, tmp_path / "dump")
    (tmp_path / "out").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    before = content(tmp_path)
    with pytest.raises(ConfigError) as refused:
        analyse(Path("dump"), Path("out"), **paths)
    assert str(refused.value).startswith(told)
    assert content(tmp_path) == before


# full disks


@pytest.mark.parametrize("name", ["write_through", "sync_folder"])
def test_an_error_while_tables_are_written_is_told_and_repaired(name, dump, tmp_path, monkeypatch):
    analyse(dump, tmp_path / "whole", seed=1)
    analyse(dump, tmp_path / "out")
    before = tables(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(write, name, _no_space)
        with pytest.raises(OutputError, match=r"run\.json: cannot be written: No space left"):
            analyse(dump, tmp_path / "out", seed=1)
    if name == "write_through":
        assert tables(tmp_path / "out") == before
    assert computed(dump, tmp_path / "out", seed=1) == []
    assert tables(tmp_path / "out") == tables(tmp_path / "whole")
    assert not list((tmp_path / "out" / ".heads").glob("tables-*"))


def _no_space(*arguments):
    raise OSError(28, "No space left on device")


# tables


def test_tables_are_sorted_and_read_back_exactly(tmp_path):
    path = make_dump(tmp_path / "dump", layers=2, q_heads=2, k_heads=1, n=80)
    out, heads = tmp_path / "out", [(0, 0), (0, 1), (1, 0), (1, 1)]
    analyse(path, out)
    with (out / "head_metrics.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == list(HEAD_METRICS.names)
    assert [(int(row[0]), int(row[1])) for row in rows] == heads
    for row, (layer, head) in zip(rows, heads, strict=True):
        result = analyze_head(layer, head, 0, path)
        written = dict(zip(header, row, strict=True))
        assert written.pop("layer_type") == result.metrics["layer_type"] == "full_attention"
        expected = [float(result.metrics[name]) for name in written]
        np.testing.assert_array_equal([float(text) for text in written.values()], expected)
        assert written["sliding_window"] == "nan"  # not an empty cell
    buckets = pd.read_csv(out / "head_bucket_plasticity.csv")
    order = buckets[["layer", "q_head", "q_bucket", "k_bucket"]].to_numpy().tolist()
    assert order == sorted(order)
    weights = pd.read_csv(out / "head_component_weights.csv")
    np.testing.assert_allclose(weights.groupby(["layer", "q_head"]).weight.sum(), 1.0, rtol=1e-12)
    info = run_info(out)
    assert set(info["tables"].values()) == set(tables(out))
    for kind, name in info["tables"].items():
        assert info["sha256"][kind] == hashlib.sha256((out / name).read_bytes()).hexdigest()


def test_columns_begin_with_those_of_the_seeds():
    assert HEAD_METRICS.names[:21] == (
        *("layer", "q_head", "k_head", "n_q_tokens", "n_k_tokens", "d_model", "q_R2_pos"),
        *("q_R2_scalar", "q_mae_baseline", "q_mae_proj", "q_mae_ratio", "q_resid0_skew"),
        *("q_resid0_kurt", "q_resid0_ks_p", "q_noise_med_abs_skew", "q_noise_med_abs_kurt"),
        *("q_noise_med_ks_p", "q_noise_frac_ks_p_lt_alpha", "ap_overall", "q_beta_norm"),
        "q_R2_total",
    )
