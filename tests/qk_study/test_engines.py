"""A study whose captures and analyses run on a real Ray cluster of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here
from qk_study.plan import make_plans
from qk_study.reading import read_study
from qk_study.steps import study_models
from small_study import CAPTURE, study_in, write_study
from sniffing import ONE_THREAD, same_bytes
from tiny_texts import save_texts, save_tiny_model

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.long  # a Ray cluster starts
ON_CPUS = {"engine": "ray", "num_gpus": 0, "num_actors": 1}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, texts and a dump."""
    folder = tmp_path_factory.mktemp("engines")
    save_tiny_model(folder / "model")
    save_texts(folder / "texts", [150] * 4)
    add_rotary(make_dump(folder / "dump", layers=1, q_heads=2, k_heads=1, n=300))
    return folder


@pytest.fixture(scope="module")
def local(place: Path) -> Path:
    """The study without Ray."""
    return made_study(place, "local", {}, {})


@pytest.fixture(scope="module")
def on_ray(place: Path) -> Path:
    """The study whose capture and whose analyses run on the cluster."""
    return made_study(place, "ray", ON_CPUS, {"engine": "ray"})


def made_study(place: Path, name: str, capture: dict[str, Any], analysis: dict[str, Any]) -> Path:
    write_engines(place, name, capture, analysis)
    assert study_in([str(place), f"{name}.yaml"]) == 0
    return place / "results" / name


def write_engines(
    place: Path, name: str, capture: dict[str, Any], analysis: dict[str, Any]
) -> None:
    write_study(
        place,
        f"{name}.yaml",
        models=[{"label": "tiny", "model": "model"}, {"label": "B", "dump": "dump"}],
        capture={"capture": CAPTURE, **capture},
        analysis={"max_workers": 1, **analysis},
        figures="none",
    )


def test_dumps_and_tables_are_those_of_the_local_engine(local: Path, on_ray: Path) -> None:
    assert same_bytes(on_ray / "dumps" / "tiny", local / "dumps" / "tiny")
    found, expected = (
        {path.name: path.read_bytes() for path in (study / "tables").iterdir()}
        for study in (on_ray, local)
    )
    assert found == expected


def test_a_capture_without_a_gpu_of_the_cluster_fails_alone(
    place: Path, on_ray: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_engines(place, "gpus", {"engine": "ray"}, {"engine": "ray"})
    with chdir(place):  # the work on the models alone, without tables and page
        settings = read_study(["gpus.yaml"])
        found = [*study_models(settings, make_plans(settings))]
    assert found[0].failure.startswith("num_gpus: no node has a place for an actor")
    assert found[1].run is not None
    assert f"error: tiny: {found[0].failure}\n" in capsys.readouterr().err
