"""Runs that are killed, interrupted or run out of disk: nothing finished is lost, bytes agree."""

import shutil
import subprocess
from pathlib import Path

import pytest

from attention_plasticity.api import open_run
from commands import start
from commands_here import analyze_here, run_here
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from processes import children, is_alive
from qk_toolkit.errors import ConfigError
from waiting import wait_for

TABLES = (
    *("head_metrics.csv", "head_bucket_plasticity.csv"),
    *("head_component_weights.csv", "head_influences.csv", "head_bin_plasticity.csv"),
)


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Large enough that a run can be caught half-way."""
    folder = tmp_path_factory.mktemp("dump")
    return add_rotary(make_dump(folder, layers=3, q_heads=4, k_heads=2, n=3000, d=32), 3, 32)


@pytest.fixture(scope="module")
def finished(dump, tmp_path_factory):
    """The folder of a run nobody disturbed, with one worker."""
    out = tmp_path_factory.mktemp("whole")
    assert analyze_here("--dataset_local_root", dump, "--output_dir", out).returncode == 0
    return out


@pytest.fixture(scope="module")
def whole(finished):
    return tables(finished)


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the undisturbed run that a test may continue or spoil."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def tables(out):
    return {name: (out / name).read_bytes() for name in TABLES}


def records(out):
    return {path.name for path in out.glob(".heads/*/l*.record")}


def record_of(out, name):
    """The record of a key head, such as `l01k02`."""
    [found] = out.glob(f".heads/*/{name}-*.record")
    return found


def kill_in_layer(layer, words, out, planted):
    """Kill a run while its two workers are amid heads of a layer."""
    planted.before_heads(f"if group.layer >= {layer}: gate(f'{layer} {{os.getpid()}}')")
    quiet = subprocess.DEVNULL
    with start("analyze", *words, stdout=quiet, stderr=quiet) as run:
        try:
            wait_for("two workers at the gate", lambda: len(planted.waiting(f"{layer} ")) == 2)
            wait_for("the records of earlier layers", lambda: len(records(out)) == 2 * layer)
            workers = children(run.pid)
        finally:
            run.kill()
    for name in planted.waiting(f"{layer} "):
        planted.open(name)
    assert len(workers) == 2
    wait_for("the end of the workers", lambda: not any(map(is_alive, workers)))


def test_a_killed_run_ends_its_workers_and_continues_with_the_same_bytes(
    dump, whole, tmp_path, planted
):
    out = tmp_path / "out"
    words = ("--dataset_local_root", dump, "--output_dir", out, "--max_workers", 2)
    for layer in (1, 2):
        kill_in_layer(layer, words, out, planted)
        assert not any((out / name).exists() for name in TABLES)
        assert len(records(out)) == 2 * layer
    planted.remove()
    last = analyze_here(*words)
    assert last.returncode == 0
    assert "8 of 12 heads were finished earlier" in last.stderr
    assert tables(out) == whole


def test_an_unfinished_run_says_how_many_heads_are_finished(copy, tmp_path):
    for path in copy.iterdir():
        path.is_file() and path.unlink()
    record_of(copy, "l01k01").unlink()
    told = f"{copy}: the analysis is not finished: 5 key heads recorded so far"
    for words in (["report", copy], ["plot", "all", copy, "--output", tmp_path / "figures"]):
        refused = run_here(*words)
        assert refused.returncode == 2
        assert told in refused.stderr
    with pytest.raises(ConfigError, match="the analysis is not finished: 5 key heads"):
        open_run(copy)
