"""A capture by ranks in a real Ray cluster of this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from dying_ranks import fails, first_dies, stops_in_its_third_text
from hub_server import CLIENT_WARNINGS, running_hub
from qk_sniffer.capture import run
from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.ray_ranks import _run_rank, run_on_ray
from qk_sniffer.capture.run import run_capture, run_rank
from qk_sniffer.config import CaptureConfig, make_config
from qk_toolkit import ray_cluster
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.watcher import Watcher
from sniffing import ONE_THREAD, same_bytes
from tiny_texts import save_texts, save_tiny_model
from waiting import wait_for

ray = pytest.importorskip("ray")

LENGTHS = [20, 12, 25, 18, 9, 22, 30, 400]


HERE = Path(__file__).parent  # has dying_ranks.py; tests/ has waiting.py
PLACES = (HERE, HERE.parent, HERE.parents[1])
PATHS = os.pathsep.join([*map(str, PLACES), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for all tests, as its start takes seconds."""
    ray.init(
        address="local",  # not a cluster of another test
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {**ONE_THREAD, "PYTHONPATH": PATHS}},
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(place / "model"), save_texts(place / "texts", LENGTHS)


@pytest.fixture(scope="module")
def whole(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of one process, with as many threads as an actor has."""
    dump, threads = tmp_path_factory.mktemp("whole"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone: dict[str, object] = {"engine": "hf", "num_gpus": None, "num_actors": None}
        run_capture(config_of(inputs, dump, **alone))  # with the sampler auto, as the actors
    finally:
        torch.set_num_threads(threads)
    return dump


class Notes(Watcher):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.texts = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, steps: int = 1, **counts: int) -> None:
        self.texts += steps


def config_of(inputs: tuple[Path, Path], dump: Path, **more: object) -> CaptureConfig:
    return make_config(
        model={"name": str(inputs[0])},
        dataset={"path": str(inputs[1])},
        output={"data_root": str(dump)},
        **{"engine": "ray", "num_gpus": 0, "num_actors": 2, **more},
    )


@pytest.mark.long
@pytest.mark.filterwarnings(CLIENT_WARNINGS)
def test_a_rank_that_dies_is_started_again_and_the_command_publishes(
    inputs: tuple[Path, Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first dies before it overwrites the old dump."""
    dump, notes = tmp_path / "dump", Notes()
    (dump / "l99h00q").mkdir(parents=True)
    (dump / "l99h00q" / "data.parquet").write_bytes(b"of another model")
    config = config_of(inputs, dump, num_actors=4, overwrite=True)
    output = config.output.model_copy(update={"hf_repo_id": "me/by-ray", "hf_branch": "tiny"})
    with running_hub() as hub:
        for name, value in hub.environment.items():
            monkeypatch.setenv(name, value)
        published = config.model_copy(update={"output": output})
        with monkeypatch.context() as patch:
            patch.setattr(run, "run_rank", partial(first_dies, tmp_path / "begun", False))
            result = run_capture(published, notes)
        assert result.complete
        assert result.published is not None
        assert "dump.json" in hub.branch("me/by-ray", "tiny")
    assert not (dump / "l99h00q").exists()
    for expected in (
        "4 given, but there are places for 2",
        "engine ray: 2 actors, 0 GPUs each",
        "actor 0: its process died, and it is started again",
        "16 query and 8 key heads",
    ):
        assert any(expected in note for note in notes.notes), expected
    assert same_bytes(dump, whole)
    assert not [*dump.glob(".shared-*")]
    local = config_of(inputs, dump, engine="hf", num_gpus=None, num_actors=None)
    assert run_capture(local).was_complete  # the engine is no part of the plan


@pytest.mark.long
def test_when_all_ranks_die_the_reason_is_told(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    alone = config_of(inputs, tmp_path / "dump", num_actors=1, overwrite=True)
    notes = Notes()
    with pytest.raises(ToolkitError) as error:
        run_on_ray(alone, notes, partial(first_dies, tmp_path / "begun", True))
    address = ray.get_runtime_context().gcs_address
    assert str(error.value) == (
        f"Ray cluster at {address}: all actors ended before the dump was complete (its process "
        "died (killed, or memory was short)). Finished texts are kept; run the same command again "
        "to continue."
    )
    assert notes.notes[1:] == [
        "actor 0: its process died, and it is started again",
        "actor 0: its process died (killed, or memory was short)",
    ]
    assert not (tmp_path / "dump").exists()


def test_a_rank_without_the_folder_of_the_command_is_refused(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    config = config_of(inputs, tmp_path / "dump")
    with pytest.raises(ConfigError, match=r"data_root: node .* has no access to .*all nodes share"):
        _run_rank(run_rank, config, Ranks(), tmp_path, tmp_path / "dump" / ".shared-1", None)
    assert not (tmp_path / "dump").exists()


def test_a_command_that_fails_leaves_no_folder_and_takes_none_of_an_analysis(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "nowhere", inputs[1]
    with pytest.raises(ConfigError, match="does not exist"):
        run_on_ray(config_of(nowhere, tmp_path / "new" / "dump", num_actors=1), Notes(), fails)
    assert not (tmp_path / "new").exists()
    (tmp_path / "run.json").write_text("{}")
    notes = Notes()
    with pytest.raises(ConfigError, match="holds results of an analysis"):
        run_capture(config_of(nowhere, tmp_path), notes)
    assert not notes.notes  # no rank was started
    for more, message in (
        ({"num_actors": None}, "the cluster has 0 GPUs and num_gpus is 0"),
        ({"num_gpus": 2}, "the cluster has 0 GPUs and num_gpus is 2, with 2 CPUs"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_capture(config_of(inputs, tmp_path / "other", **more))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="start this command once"):
        run_capture(config_of(inputs, tmp_path / "other"))


def test_settings_of_ray_are_checked(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    for more, message in (
        ({"num_gpus": 1.5}, "num_gpus: 1.5 given, expected a whole number"),
        ({"engine": "hf", "num_actors": None}, "num_gpus: has an effect only with engine ray"),
        ({"engine": "hf", "num_gpus": None}, "num_actors: has an effect only with engine ray"),
        ({"engine": "hf", "ray_address": "auto"}, "ray_address: has an effect only with"),
    ):
        with pytest.raises(ConfigError, match=message):
            config_of(inputs, tmp_path, **more)
    for number in (0, 0.5, 4):
        assert config_of(inputs, tmp_path, num_gpus=number).gpus_per_actor == number
    assert config_of(inputs, tmp_path, num_gpus=None).gpus_per_actor == 1


@pytest.mark.long
def test_a_cluster_whose_head_dies_is_named_and_finished_texts_are_kept(
    inputs: tuple[Path, Path],
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The last test here, because it leaves the cluster of the others."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    monkeypatch.setattr(ray_cluster, "_SECONDS_WITHOUT_ANSWER", 2.0)
    for name, value in (*ONE_THREAD.items(), ("PYTHONPATH", PATHS)):
        monkeypatch.setenv(name, value)
    dying = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    [head] = dying.head_node.all_processes["gcs_server"]
    config = config_of(inputs, tmp_path, ray_address=dying.address, num_actors=1)

    def kill() -> None:
        wait_for("the third text", (tmp_path / "busy").exists)
        head.process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    capfd.readouterr()
    try:
        with pytest.raises(ToolkitError, match=f"at {dying.address}: the connection was lost"):
            run_on_ray(config, Watcher(), stops_in_its_third_text)
        printed = capfd.readouterr()
        killer.join()
    finally:
        dying.shutdown()
    assert tuple(printed) == ("", "")
    notes = Notes()
    run_capture(config.model_copy(update={"engine": "hf"}), notes)
    kept = [note for note in notes.notes if note.startswith("continuing: ")]
    assert kept in (["continuing: 2 texts are finished"], ["continuing: 3 texts are finished"])
    assert same_bytes(tmp_path, whole)
