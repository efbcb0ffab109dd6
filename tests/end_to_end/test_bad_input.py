"""Bad input through the command: exit code, message, and results of the other heads.

One set of workers analyses all the spoilt dumps, each in a run of its own.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attention_plasticity.config import make_config
from attention_plasticity.run.engines import LocalProcesses
from attention_plasticity.run.runner import run_analysis
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.summary import print_summary
from commands_here import analyze_here
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here

QUERY, KEY = "l00h01q/data.parquet", "l00h00k/data.parquet"


def rewrite(file, change):
    """The file with a change, and without the names of its columns in its metadata."""

    def spoil(dump):
        table = change(pq.read_table(dump / file))
        pq.write_table(table.replace_schema_metadata(None), dump / file)

    return spoil


def set_column(name, values):
    return lambda table: table.set_column(table.schema.get_field_index(name), name, values(table))


def narrowed(table):
    vectors = [vector[:-1] for vector in table["vector"].to_pylist()]
    return set_column("vector", lambda _: pa.array(vectors, pa.list_(pa.float32())))(table)


def shuffle_buckets(dump):
    """In a dump whose dump.json tells the buckets."""
    told = {"bucket_type": "uniform", "min_bucket_size": 128, "layers": [{"layer": 0}]}
    (dump / "dump.json").write_text(json.dumps(told))

    def shuffled(table):
        order = np.random.default_rng(0).permutation(table.num_rows)
        return set_column("bucket", lambda t: t["bucket"].take(order))(table)

    rewrite(QUERY, shuffled)(dump)


WIDTH = 8
CASES = {
    "shuffled buckets": (shuffle_buckets, "belongs to bucket", f"{QUERY}: row ", 1),
    "missing key head": (
        lambda dump: shutil.rmtree(dump / "l00h01k"),
        *("is not in the dump", "l00h01k", 2),
    ),
    "differing widths": (rewrite(QUERY, narrowed), "queries have 7 dimensions", "l00h01q", 1),
    "no example_id": (
        rewrite(KEY, lambda t: t.drop_columns("example_id")),
        *("set single_example: true", KEY, 2),
    ),
    "too few queries": (rewrite(QUERY, lambda t: t.slice(0, 2)), "has 2 queries", "l00h01q", 1),
}
"""How to break a dump of 1 layer, 4 query and 2 key heads; what the message says and names; and how
many heads fail. The others must come out."""
LAYOUT = {"num_q_heads": 4, "num_k_heads": 2}  # so that a missing key head is noticed


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return make_dump(tmp_path_factory.mktemp("sound"), layers=1, n=60, d=WIDTH)


@pytest.fixture(scope="module")
def outcomes(sound, tmp_path_factory):
    """The run of every dump with spoilt heads."""
    root = tmp_path_factory.mktemp("spoilt")
    folders = {f"case-{number}": name for number, name in enumerate(CASES)}
    for folder, name in folders.items():
        spoil, *_ = CASES[name]
        spoil(Path(shutil.copytree(sound, root / folder)))
    with LocalProcesses() as engine:
        return {
            name: run_analysis(
                make_config(
                    LAYOUT,
                    dataset_local_root=str(root / folder),
                    output_dir=str(root / "out" / folder),
                ),
                engine=engine,
            )
            for folder, name in folders.items()
        }


@pytest.mark.parametrize("name", CASES)
def test_bad_heads_are_told_and_the_others_come_out(name, outcomes, capsys):
    (_, phrase, names, failed), outcome = CASES[name], outcomes[name]
    print_summary(FinishedRun.open(outcome.place.folder))  # as the command does
    told = "".join(capsys.readouterr())
    assert phrase in " ".join(told.split()), told
    assert names in told
    assert "internal error" not in told
    heads, analysed = outcome.info["heads"], 4 - failed
    assert (heads["analysed"], heads["failed"], heads["not_analysed"]) == (analysed, failed, 0)
    assert outcome.has_failures
    assert (outcome.place.folder / "head_metrics.csv").read_text().count("\n") == 1 + analysed


def test_every_head_failing_leaves_no_table_in_place(sound, tmp_path):
    dump, out = Path(shutil.copytree(sound, tmp_path / "dump")), tmp_path / "out"
    words = ("--dataset_local_root", dump, "--output_dir", out, "--max_workers", 1)
    spoilt = dump / QUERY
    content = spoilt.read_bytes()
    spoilt.write_text("spoilt")
    some = analyze_here(*words)
    assert some.returncode == 1
    assert f"{QUERY}: is not a readable Parquet file" in " ".join(some.stdout.split())
    assert "Traceback" not in some.stdout + some.stderr
    spoilt.write_bytes(content)
    assert analyze_here(*words).returncode == 0
    earlier = (out / "head_metrics.csv").read_bytes()
    contents = {file: file.read_bytes() for file in dump.glob("*/data.parquet")}
    for file in contents:
        file.write_text("spoilt")
    failed = analyze_here(*words)
    assert failed.returncode == 1
    assert "4 of 4 heads failed" in failed.stdout
    assert not list(out.glob("*.csv"))
    assert json.loads((out / "run.json").read_text())["heads"]["failed"] == 4
    for file, right in contents.items():
        file.write_bytes(right)
    assert "4 of 4 heads were finished earlier" in analyze_here(*words).stderr
    assert (out / "head_metrics.csv").read_bytes() == earlier
