"""A study whose captures and analyses run on a real Ray cluster of this machine."""

import json
import os

import pytest

from dumps import add_rotary, make_dump
from helpers.small_study import CAPTURE, study_in, write_study
from lasting_workers import workers as workers  # a fixture of all tests here
from sniffing import ONE_THREAD, same_bytes
from tiny_texts import save_texts, save_tiny_model

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.long  # a Ray cluster starts


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One cluster for all parts of the studies. It does not start in the folder of the study."""
    variables = {**ONE_THREAD, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    ray.init(
        address="local",  # not a cluster of another test
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": variables},
    )
    yield
    ray.shutdown()


def test_dumps_and_tables_are_those_of_the_local_engine(tmp_path):
    """Also those of a study whose capture fails: no node of the cluster has a GPU."""
    save_tiny_model(tmp_path / "model")
    save_texts(tmp_path / "texts", [150] * 4)
    add_rotary(make_dump(tmp_path / "dump", layers=1, q_heads=2, k_heads=1, n=300))
    on_ray = {"engine": "ray"}
    local = made_study(tmp_path, "local", {}, {})
    found = made_study(tmp_path, "ray", {"ray": {"gpus": 0, "processes": 1}}, on_ray)
    assert same_bytes(found / "dumps" / "tiny", local / "dumps" / "tiny")
    for path in (local / "tables").iterdir():
        assert (found / "tables" / path.name).read_bytes() == path.read_bytes()
    failed = made_study(tmp_path, "gpus", {"ray": {}}, on_ray, code=1)
    one, other = json.loads((failed / "study.json").read_text())["models"]
    assert one["failure"].startswith("ray.gpus: no node has a place for a process")
    assert "failure" not in other


def made_study(place, name, capture, analysis, code=0):
    """The folder of a study of a model and a dump."""
    write_study(
        place,
        f"{name}.yaml",
        models=[{"label": "tiny", "model": "model"}, {"label": "B", "dump": "dump"}],
        capture={"capture": CAPTURE, **capture},
        analysis={"max_workers": 1, **analysis},
        figures="none",
    )
    assert study_in([str(place), f"{name}.yaml"]) == code
    return place / "results" / name
