"""A study of dumps and runs in an S3 bucket and on a Hub of this machine."""

import json
import shutil
from contextlib import chdir

import pytest

from commands_here import analyze_here
from dumps import add_rotary, make_dump
from helpers.small_study import made_files, study_in, write_study
from hub_server import CLIENT_WARNINGS, WRITER, reset_before, running_hub
from hubs import REPO, client_of, downloads, upload
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_dump.side_files import Example, write_examples
from qk_study.plan import make_plans
from qk_study.reading import read_study
from qk_study.steps import study_models

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)
SECRETS = (b"secret-of-the-test", WRITER.encode())
ON_HUB = f"hf://datasets/{REPO}@tiny"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two dumps and a finished run."""
    folder = tmp_path_factory.mktemp("remote")
    for name, rows in (("dump", 300), ("other", 320)):
        make_dump(folder / name, layers=1, q_heads=2, k_heads=1, n=rows)
        write_examples(add_rotary(folder / name), [Example(n, "text", 1024, "") for n in range(4)])
    with chdir(folder):
        assert analyze_here("dump", "--output_dir", "run", "--max_workers", 1).returncode == 0
    return folder


@pytest.fixture(scope="module")
def s3(place, s3_of_file):
    """A bucket with a dump and a run."""
    s3_of_file.put_folder(place / "dump", "dumps/tiny")
    s3_of_file.put_folder(place / "run", "runs/tiny")
    return s3_of_file


@pytest.fixture(scope="module")
def hub(place, tmp_path_factory):
    """A Hub with a dump on the branch `tiny`, and with a run. This process is its client."""
    with running_hub() as server, client_of(server, tmp_path_factory.mktemp("hub")):
        upload(server, place / "other")
        upload(server, place / "run", "results")
        yield server


@pytest.fixture(scope="module")
def local(place):
    """The study with copies on this machine."""
    write_places(place, "local.yaml", "dump", "run", "other")
    assert study_in([str(place), "local.yaml"]) == 0
    return place / "results" / "local"


@pytest.fixture(scope="module")
def made(place, s3, hub):
    """The study with URLs."""
    write_places(place, "remote.yaml", s3.url("dumps/tiny"), s3.url("runs/tiny"), ON_HUB)
    assert study_in([str(place), "remote.yaml"]) == 0
    return place / "results" / "remote"


def write_places(place, name, dump, run, other):
    """A study of a dump, a run and a dump."""
    models = [{"dump": dump}, {"run": run}, {"dump": other}]
    labels = ("dump", "run", "dump 2")
    write_models(place, name, [{"label": a, **b} for a, b in zip(labels, models, strict=True)])


def write_models(place, name, models):
    write_study(place, name, models=models, texts=None, capture=None, figures="none")


def tables(study):
    return {path.name: path.read_bytes() for path in (study / "tables").glob("*.csv")}


def test_a_dry_run_does_not_ask_the_hub_for_a_dump(place, s3, hub, capsys):
    write_models(
        place, "dry.yaml", [{"dump": s3.url("dumps/tiny")}, {"label": "B", "dump": ON_HUB}]
    )
    files, requests = sorted(place.rglob("*")), len(hub.log)
    assert study_in([str(place), "dry.yaml", "--dry_run"]) == 0
    assert len(hub.log) == requests
    assert sorted(place.rglob("*")) == files
    told = capsys.readouterr().out
    assert "B: its dump is on the Hub; sizes are known when it is here" in told
    assert "Nothing was written" in told


def test_tables_are_those_of_local_copies(made, local, s3):
    assert tables(made) == tables(local)
    record, expected = (json.loads((one / "study.json").read_text()) for one in (made, local))
    assert record["models"][1]["run"] == s3.url("runs/tiny")
    assert record["models"][2]["place"] == ON_HUB
    for one, other in zip(record["models"], expected["models"], strict=True):
        assert all(one[name] == other[name] for name in ("heads", "texts", "sha256"))
    for name, content in made_files(made).items():
        assert not any(secret in content for secret in SECRETS), name


def test_a_repeated_command_makes_nothing_again(made, place, hub, capsys):
    before, fetched = made_files(made), downloads(hub)
    info = (made / "runs" / "dump-2" / "run.json").read_bytes()
    assert study_in([str(place), "remote.yaml"]) == 0
    told = capsys.readouterr().err
    assert "model 1 of 3, dump: results/remote/runs/dump is analysed already" in told
    assert "model 3 of 3, dump 2: results/remote/runs/dump-2 is analysed already" in told
    assert made_files(made) == before
    assert (made / "runs" / "dump-2" / "run.json").read_bytes() == info
    assert downloads(hub) == fetched
    requests = len(hub.requests("dataset_info"))
    assert study_in([str(place), "remote.yaml", "--dry_run"]) == 0
    told = capsys.readouterr().out
    assert told.count("analysed already") == 2
    assert "dump 2: whether its dump on the Hub has changed is not checked here" in told
    assert len(hub.requests("dataset_info")) == requests


def test_a_finished_analysis_is_used_if_its_dump_cannot_be_reached(made, place, hub, capsys):
    hub.fail("*", reset_before, times=None)
    try:
        with chdir(place):  # the work on the models alone, without tables and page
            settings = read_study(["remote.yaml"])
            found = [*study_models(settings, make_plans(settings))]
    finally:
        hub.heal()
    assert [one.failure for one in found] == ["", "", ""]
    assert (
        "results/remote/runs/dump-2: the dump was not compared with the finished analysis, which "
        f"is used: {REPO}@tiny: fetching failed: no connection"
    ) in capsys.readouterr().err


WRONG = {
    "no bucket": (
        {"dump": "s3://no-such-bucket/dump"},
        "s3://no-such-bucket/dump: listing failed: The specified bucket does not exist",
    ),
    "no folder": ({"dump": "s3://BUCKET/nothing"}, "s3://BUCKET/nothing: holds no files"),
    "no run": ({"run": "s3://BUCKET/nothing"}, "s3://BUCKET/nothing: holds neither run.json nor"),
    "no repo": (
        {"dump": "hf://datasets/me/nothing@tiny"},
        "me/nothing@tiny: fetching failed: no such dataset",
    ),
    "no branch": (
        {"dump": f"hf://datasets/{REPO}@nothing"},
        f"{REPO}@nothing: fetching failed: there is no branch, tag or commit 'nothing'",
    ),
}


def test_places_that_do_not_exist_are_named_and_the_others_go_on(place, s3, hub, capsys):
    models = []
    for label, (entry, _) in WRONG.items():
        [(kind, where)] = entry.items()
        models.append({"label": label, kind: where.replace("BUCKET", s3.bucket)})
    models.append({"label": "read", "run": f"hf://datasets/{REPO}@results"})
    write_models(place, "wrong.yaml", models)
    assert study_in([str(place), "wrong.yaml"]) == 1
    told = capsys.readouterr()
    lines = [line for line in told.err.splitlines() if line.startswith("error: ")]
    record = json.loads((place / "results" / "wrong" / "study.json").read_text())
    for (label, (_, reason)), line, model in zip(
        WRONG.items(), lines, record["models"][:-1], strict=True
    ):
        expected = reason.replace("BUCKET", s3.bucket)
        assert line.startswith(f"error: {label}: {expected}")
        assert model["failure"].startswith(expected)
    named = f"failed: {', '.join(WRONG)}; the reasons are in results/wrong/README.md"
    assert named in told.out.splitlines()
    readme = (place / "results" / "wrong" / "README.md").read_text()
    assert "- no bucket: s3://no-such-bucket/dump: listing failed" in readme
    assert f"**read**: read from the finished run `hf://datasets/{REPO}@results`" in readme
    for name, content in made_files(place / "results" / "wrong").items():
        assert not any(secret in content for secret in SECRETS), name
    shutil.rmtree(place / "results" / "wrong")
    assert study_in([str(place), "wrong.yaml", "--dry_run"]) == 1
    told = capsys.readouterr()
    assert f"will fail: no run: {s3.url('nothing')}: holds neither" in told.err
    assert "Nothing was written" in told.out
