"""A study whose captures and analyses run on a real Ray cluster of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lasting_workers import workers as workers  # a fixture of all tests here
from small_study import CAPTURE, made_files, make_inputs, study_in, write_study
from sniffing import ONE_THREAD, same_bytes

ray = pytest.importorskip("ray")

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
    return make_inputs(tmp_path_factory.mktemp("engines"))


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


@pytest.mark.parametrize("engine", ["ray", "local"])
def test_a_repeated_command_makes_nothing_again_under_any_engine(
    on_ray: Path, place: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = made_files(on_ray)
    chosen = (ON_CPUS, {"engine": "ray"}) if engine == "ray" else ({}, {})
    write_engines(place, "again", *chosen)
    assert study_in([str(place), "again.yaml", "--output_dir", "results/ray"]) == 0
    told = capsys.readouterr().err
    for part in ("dumps/tiny is captured", "runs/tiny is analysed", "runs/b is analysed"):
        assert f"results/ray/{part} already" in told
    after = made_files(on_ray)
    named = ("README.md", "study.json", "settings/")  # have the name and the engine of the file
    assert {name for name in before if after[name] != before[name]} <= {
        name for name in before if name.startswith(named)
    }


def test_a_capture_without_a_gpu_of_the_cluster_fails_alone(
    place: Path, on_ray: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(
        place,
        "gpus.yaml",
        models=[{"label": "tiny", "model": "model"}, {"label": "B", "run": "results/ray/runs/b"}],
        capture={"capture": CAPTURE, "engine": "ray"},
        figures="none",
    )
    assert study_in([str(place), "gpus.yaml"]) == 1
    told = capsys.readouterr()
    assert "error: tiny: num_gpus: no node has a place for an actor" in told.err
    assert "failed: tiny; the reasons are in results/gpus/README.md" in told.out
