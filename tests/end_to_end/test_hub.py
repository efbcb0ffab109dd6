"""Capture, push, pull on another cache, analyse: the same bytes as from the local dump."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

from commands import command, run
from commands_here import analyze_here
from hub_server import running_hub, status
from lasting_workers import workers as workers  # a fixture of all tests here
from sniffing import sniff
from tiny_texts import save_texts, save_tiny_model

REPO = "me/sniffed"
OPTIONS = ("--max_workers", 1, "--num_pairs_per_bucket", 50)
TABLES = (
    *("head_metrics.csv", "head_bucket_plasticity.csv"),
    *("head_component_weights.csv", "head_influences.csv"),
)


def done(*flags, hub, **extra):
    """Run the command as somebody whose Hub is `hub`; what it printed."""
    finished = run(*flags, env={**hub.environment, **extra})
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


def tables(folder):
    return {name: (folder / name).read_bytes() for name in TABLES}


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """A capture of a tiny model."""
    folder = tmp_path_factory.mktemp("capture")
    model, texts = save_tiny_model(folder / "model"), save_texts(folder / "texts", [200] * 6)
    assert sniff(model, texts, folder / "dump", capture__sampler__base_rate=16.0) == 0
    return folder / "dump"


@pytest.fixture(scope="module")
def mine(dump, tmp_path_factory):
    """The tables of the local dump."""
    out = tmp_path_factory.mktemp("mine")
    words = ("--dataset_local_root", dump, "--output_dir", out, *OPTIONS)
    assert analyze_here(*words).returncode == 0
    return tables(out)


@pytest.fixture(scope="module")
def with_dump(dump):
    """A Hub to which the dump was pushed."""
    with running_hub() as hub:
        done("push", dump, "--repo", REPO, "--branch", "tiny", hub=hub)
        yield hub


@pytest.fixture
def hub(with_dump):
    """The same Hub, which works again after the test."""
    yield with_dump
    with_dump.heal()


def test_a_dump_that_was_pulled_gives_the_same_tables(hub, mine, tmp_path):
    elsewhere = {"HF_HOME": str(tmp_path / "elsewhere")}
    folder = done("pull", f"{REPO}@tiny", hub=hub, **elsewhere).splitlines()[-1]
    assert analyze_here(folder, "--output_dir", tmp_path / "theirs", *OPTIONS).returncode == 0
    assert tables(tmp_path / "theirs") == mine
    assert "hub" in json.loads((tmp_path / "theirs" / "run.json").read_text())["input"]


def test_the_datasets_library_reads_a_branch(hub, dump, tmp_path):
    code = (
        "from datasets import load_dataset; import sys; "
        f"rows = load_dataset('{REPO}', 'l00h00q', revision='tiny', split='train'); "
        "print(rows.num_rows, *rows.column_names)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={**hub.environment, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    import pyarrow.parquet as pq

    assert loaded.returncode == 0, loaded.stderr
    table = pq.read_table(dump / "l00h00q" / "data.parquet")
    assert loaded.stdout.split() == [str(table.num_rows), *table.column_names]


@pytest.mark.parametrize("verb", ["push", "failing"])
def test_bytes_have_a_bar_on_a_terminal(hub, dump, tmp_path, verb):
    words = {
        "push": ("push", dump, "--repo", REPO, "--branch", "another"),
        "failing": ("analyze", "--dataset_local_root", f"hf://datasets/{REPO}@tiny", "--dry_run"),
    }
    if verb == "failing":
        hub.fail("resolve_get", status(403), path="l00h00q", times=None)
    ours, theirs = pty.openpty()
    terminal = {"TERM": "xterm", "COLUMNS": "120", "HF_HOME": str(tmp_path / "home")}
    running = subprocess.Popen(
        command(*words[verb]),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=tmp_path,
        env={**hub.environment, **terminal},
    )
    os.close(theirs)
    told = b""
    try:
        with suppress(OSError):  # a terminal whose other side is gone
            while chunk := os.read(ours, 1 << 16):
                told += chunk
    finally:
        os.close(ours)
        running.wait()
    assert running.returncode == (1 if verb == "failing" else 0)
    assert (b"sending" if verb == "push" else b"fetching") in told
    assert b"data.parquet:" not in told  # the client's own bars, one per file
    assert told.count(b"\x1b[?25l") == told.count(b"\x1b[?25h") == 1  # the cursor comes back
