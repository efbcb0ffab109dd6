"""Bad input through the command: exit code, message, and results of the other heads.

One set of workers analyses all the spoilt dumps, each in a run of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attention_plasticity.config import make_config
from attention_plasticity.run.engines import LocalProcesses
from attention_plasticity.run.runner import run_analysis
from attention_plasticity.run.write import Outcome
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.summary import print_summary
from commands_here import analyze_here
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here

QUERY, KEY = "l00h01q/data.parquet", "l00h00k/data.parquet"


@dataclass(frozen=True)
class Case:
    """How to break a dump of 1 layer, 4 query and 2 key heads, and what must follow."""

    spoil: Callable[[Path], object]
    phrase: str  # in the message
    code: int = 1
    names: str = ""  # what the message must name
    failed: int = 1  # heads that fail; the others must come out
    flags: list[str] = field(default_factory=list)


def rewrite(file: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    """The file with a change, and without the names of its columns in its metadata."""

    def spoil(dump: Path) -> None:
        table = change(pq.read_table(dump / file))
        pq.write_table(table.replace_schema_metadata(None), dump / file)

    return spoil


def set_column(name: str, values: Callable[[pa.Table], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.get_field_index(name), name, values(table))


def narrowed(table: pa.Table) -> pa.Table:
    vectors = [vector[:-1] for vector in table["vector"].to_pylist()]
    return set_column("vector", lambda _: pa.array(vectors, pa.list_(pa.float32())))(table)


def with_value(row: int, value: float) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        vectors = table["vector"].to_pylist()
        vectors[row][0] = value
        return set_column("vector", lambda _: pa.array(vectors, pa.list_(pa.float32())))(table)

    return change


def truncate(dump: Path) -> None:
    path = dump / QUERY
    path.write_bytes(path.read_bytes()[:-200])


def unreadable(dump: Path) -> None:
    (dump / QUERY).unlink()
    (dump / QUERY).symlink_to("data.parquet")  # a loop: no user, not even root, can open it


def tells(spoil: Callable[[Path], object], **layer: object) -> Callable[[Path], None]:
    """The same damage in a dump whose dump.json tells the buckets and the layer's window."""

    def both(dump: Path) -> None:
        told = {"bucket_type": "uniform", "min_bucket_size": 128, "layers": [{"layer": 0, **layer}]}
        (dump / "dump.json").write_text(json.dumps(told))
        spoil(dump)

    return both


def shuffled(table: pa.Table) -> pa.Table:
    order = np.random.default_rng(0).permutation(table.num_rows)
    return set_column("bucket", lambda t: t["bucket"].take(order))(table)


WIDTH = 8
CASES = {
    "shuffled buckets": Case(
        tells(rewrite(QUERY, shuffled)), "belongs to bucket", names=f"{QUERY}: row "
    ),
    "a window of another kind": Case(
        tells(lambda _: None, window="64"),
        "expected a positive number of tokens or null, got '64'",
        code=2,
        names="dump.json: layers: window of layer 0",
    ),
    "missing key head": Case(
        lambda dump: shutil.rmtree(dump / "l00h01k"),
        "is not in the dump",
        names="l00h01k",
        failed=2,
    ),
    "truncated": Case(truncate, "is not a readable Parquet file", names=QUERY),
    "unreadable file": Case(unreadable, "cannot be read", names=QUERY),
    "no rows": Case(rewrite(QUERY, lambda t: t.slice(0, 0)), "holds no rows", names=QUERY),
    "differing widths": Case(
        rewrite(QUERY, narrowed), "queries have 7 dimensions", names="l00h01q"
    ),
    "infinity": Case(
        rewrite(KEY, with_value(9, np.inf)),
        "NaN or infinity in the vector",
        names=f"{KEY}: row 9",
        failed=2,
    ),
    "a value that no model has": Case(
        rewrite(QUERY, with_value(3, 2e15)), "values above 1e+15 are damaged", names="row 3"
    ),
    "no example_id": Case(
        rewrite(KEY, lambda t: t.drop_columns("example_id")),
        "set single_example: true",
        names=KEY,
        failed=2,
    ),
    "too few queries": Case(
        rewrite(QUERY, lambda t: t.slice(0, 2)), "has 2 queries", names="l00h01q"
    ),
    "too few key heads": Case(
        lambda _: None,
        "queries would be paired with the wrong keys",
        code=2,
        names="l00h01k",
        flags=["--num_q_heads", "4", "--num_k_heads", "1"],
    ),
    "broken dump.json": Case(
        lambda d: (d / "dump.json").write_text("{"), "is not JSON", code=2, names="dump.json"
    ),
}


FAILURES = {name: case for name, case in CASES.items() if case.code == 1}
REFUSALS = {name: case for name, case in CASES.items() if case.code == 2}
LAYOUT = {"num_q_heads": 4, "num_k_heads": 2}  # so that a missing key head is noticed


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dump(tmp_path_factory.mktemp("sound"), layers=1, n=60, d=WIDTH)


@pytest.fixture(scope="module")
def outcomes(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The run of every dump with spoilt heads."""
    root = tmp_path_factory.mktemp("spoilt")
    folders = {f"case-{number}": name for number, name in enumerate(FAILURES)}
    for folder, name in folders.items():
        assert not FAILURES[name].flags, name
        FAILURES[name].spoil(Path(shutil.copytree(sound, root / folder)))
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


@pytest.mark.parametrize("name", FAILURES)
def test_bad_heads_are_told_and_the_others_come_out(
    name: str, outcomes: dict[str, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    case, outcome = CASES[name], outcomes[name]
    print_summary(FinishedRun.open(outcome.place.folder))  # as the command does
    told = "".join(capsys.readouterr())
    assert case.phrase in " ".join(told.split()), told
    assert case.names in told
    assert "internal error" not in told
    heads, analysed = outcome.info["heads"], 4 - case.failed
    assert (heads["analysed"], heads["failed"], heads["not_analysed"]) == (analysed, case.failed, 0)
    assert outcome.has_failures
    assert (outcome.place.folder / "head_metrics.csv").read_text().count("\n") == 1 + analysed


@pytest.mark.parametrize("name", REFUSALS)
def test_bad_dumps_and_flags_are_refused(name: str, sound: Path, tmp_path: Path) -> None:
    case, dump = CASES[name], Path(shutil.copytree(sound, tmp_path / "dump"))
    case.spoil(dump)
    out = tmp_path / "out"
    run = analyze_here("--dataset_local_root", dump, "--output_dir", out, *case.flags)
    told = run.stdout + run.stderr
    assert run.returncode == 2, told
    assert case.phrase in " ".join(told.split()), told
    assert case.names in told
    assert not (out / "head_metrics.csv").exists()


def test_every_head_failing_leaves_no_table_in_place(sound: Path, tmp_path: Path) -> None:
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


def test_a_bad_config_is_one_line_naming_file_and_key(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("max_worker: 2")
    run = analyze_here("--config", config, "--dataset_local_root", tmp_path)
    assert run.returncode == 2
    assert "max_worker: unknown field; did you mean max_workers?" in run.stderr
    assert str(config) in run.stderr
    assert run.stderr.count("\n") == 1
