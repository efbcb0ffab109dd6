"""The command on dumps in an S3 bucket."""

import json

import pytest

import attention_plasticity as ap
from attention_plasticity.config import make_config
from commands_here import run_here
from dumps import make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.side_files import Example, write_examples
from s3_server import error

FAST = ("--max_workers", "2", "--num_pairs_per_bucket", "50")


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = make_dump(tmp_path_factory.mktemp("s3") / "tiny", layers=1, n=150)
    write_examples(folder, [Example(i, f"text {i}", 1024, "") for i in range(4)])
    return folder


def tables(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.csv")}


@pytest.fixture(autouse=True)
def _attempts(s3, monkeypatch):
    """The same in all tests, so that they share workers."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")


def test_tables_are_those_of_the_local_dump(s3, dump, tmp_path):
    s3.put_folder(dump, "dumps/tiny")
    url = s3.url("dumps/tiny")
    s3.fail("GET", error(500), times=1)
    s3.fail("GET", error(503, "SlowDown"), path="l00h01q", times=1)
    finished = run_here("analyze", url, "--output_dir", tmp_path / "s3", *FAST)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    listings = [r for r in s3.requests if "list-type" in r.path and r.status == 200]
    assert len(listings) <= 4  # at the beginning, by two workers, and at the end
    ap.analyze_dump(dump, output_dir=tmp_path / "local", max_workers=1, num_pairs_per_bucket=50)
    assert tables(tmp_path / "s3") == tables(tmp_path / "local")
    here, there = (
        json.loads((tmp_path / name / "run.json").read_text()) for name in ("local", "s3")
    )
    assert there["input"]["path"] == there["config"]["dataset_local_root"] == url
    assert there["input"]["texts"] == here["input"]["texts"] is not None
    assert there["means"] == here["means"]
    result = ap.analyze_head(0, 1, 0, dump=url, config=make_config(num_pairs_per_bucket=50))
    metrics = ap.open_run(tmp_path / "local").head_metrics.set_index("q_head")
    assert result.metrics["ap_overall"] == metrics.ap_overall[1]
    before = len(s3.requests)
    again = run_here("analyze", url, "--output_dir", tmp_path / "s3", *FAST)
    assert "4 of 4 heads were finished earlier" in again.stderr
    assert not [r for r in s3.requests[before:] if "l00h01q" in r.path], "it is read again"


def test_files_that_change_during_the_run(s3, dump, tmp_path, monkeypatch):
    from attention_plasticity.run.records import Records

    s3.put_folder(dump, "tiny")
    add = Records.add

    def replaced(self, *given):
        for head in ("l00h00q", "l00h03q"):  # the first one was read already, and is as recorded
            s3.put(f"tiny/{head}/data.parquet", (dump / "l00h02q" / "data.parquet").read_bytes())
        add(self, *given)

    monkeypatch.setattr(Records, "add", replaced)
    found = ap.analyze_dump(s3.url("tiny"), output_dir=tmp_path / "out", max_workers=1)
    reasons = dict(zip(found.failures.q_head, found.failures.reason, strict=True))
    assert sorted(reasons) == [3]
    assert "l00h03q/data.parquet: changed while it was read; run the same" in reasons[3]
