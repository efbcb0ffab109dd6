"""A capture by ranks in a real Ray cluster of this machine."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch

from dying_ranks import fails, first_dies
from hub_server import CLIENT_WARNINGS, running_hub
from qk_sniffer.capture import run
from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.ray_ranks import _run_rank, _SavedTexts, run_on_ray
from qk_sniffer.capture.run import run_capture, run_rank
from qk_sniffer.config import make_config
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.watcher import Watcher
from sniffing import ONE_THREAD, same_bytes, sniff_first
from tiny_texts import save_texts, save_tiny_model

ray = pytest.importorskip("ray")

ON_CPUS = {"processes": 2, "gpus": 0}
LENGTHS = [20, 12, 25, 18, 9, 22, 30, 400]


HERE = Path(__file__).parent  # has dying_ranks.py; tests/ has waiting.py
PLACES = (HERE, HERE.parent, HERE.parents[1])
PATHS = os.pathsep.join([*map(str, PLACES), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="module", autouse=True)
def cluster():
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
def inputs(tmp_path_factory):
    place = tmp_path_factory.mktemp("inputs")
    return save_tiny_model(place / "model"), save_texts(place / "texts", LENGTHS)


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """The dump of one process, with as many threads as a rank has."""
    dump, threads = tmp_path_factory.mktemp("whole"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_capture(config_of(inputs, dump, ray=None))  # with the sampler auto, as the ranks
    finally:
        torch.set_num_threads(threads)
    return dump


class Notes(Watcher):
    """Keeps what is reported."""

    def __init__(self):
        self.notes = []
        self.texts = 0

    def note(self, text):
        self.notes.append(text)

    def advance(self, steps=1, **counts):
        self.texts += steps


def config_of(inputs, dump, **more):
    return make_config(
        model={"name": str(inputs[0])},
        dataset={"path": str(inputs[1])},
        output={"data_root": str(dump)},
        **{"ray": ON_CPUS, **more},
    )


def on_ray(config, watcher, run_rank):
    assert config.ray is not None
    return run_on_ray(config, config.ray, watcher, run_rank)


@pytest.mark.long
@pytest.mark.filterwarnings(CLIENT_WARNINGS)
def test_a_rank_that_dies_is_started_again_and_the_command_publishes(
    inputs, whole, tmp_path, monkeypatch
):
    dump, notes = tmp_path / "dump", Notes()
    config = config_of(inputs, dump, ray={**ON_CPUS, "processes": 4})
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
    for expected in (
        "ray.processes: 4 given, 2 have room: the cluster has 0 GPUs and 2 CPUs",
        "ray: 2 processes, 0 GPUs each",
        "16 query and 8 key heads",
    ):
        assert any(expected in note for note in notes.notes), expected
    assert notes.texts <= len(LENGTHS)
    assert same_bytes(dump, whole)
    assert not [*dump.glob(".shared-*")]
    assert run_capture(config_of(inputs, dump, ray=None)).was_complete  # Ray is no part of the plan


@pytest.mark.long
def test_when_all_ranks_die_the_reason_is_told(inputs, tmp_path):
    alone = config_of(inputs, tmp_path / "dump", ray={**ON_CPUS, "processes": 1})
    notes = Notes()
    with pytest.raises(ToolkitError) as error:
        on_ray(alone, notes, partial(first_dies, tmp_path / "begun", True))
    assert str(error.value) == (
        "Ray: its process died (killed, or memory was short). Finished texts are kept; run the "
        "same command again to continue."
    )
    assert notes.notes[1:] == [f"a process failed: {error.value}"]
    assert not (tmp_path / "dump").exists()


def test_saved_texts_are_the_progress_of_the_command(inputs, whole, tmp_path, monkeypatch):
    notes = Notes()
    counted = _SavedTexts(tmp_path, notes)
    counted.look()
    assert notes.texts == 0
    sniff_first(monkeypatch, 3, *inputs, tmp_path)
    counted.look()
    counted.look()
    assert notes.texts == 3


def test_a_rank_without_the_folder_of_the_command_is_refused(inputs, tmp_path):
    config = config_of(inputs, tmp_path / "dump")
    with pytest.raises(ConfigError, match=r"data_root: node .* has no access to .*all nodes share"):
        _run_rank(run_rank, config, tmp_path, tmp_path / "dump" / ".shared-1", Ranks())
    assert not (tmp_path / "dump").exists()


def test_a_command_that_fails_leaves_no_folder_and_takes_none_of_an_analysis(
    inputs, tmp_path, monkeypatch
):
    nowhere = tmp_path / "nowhere", inputs[1]
    with pytest.raises(ConfigError, match="does not exist"):
        on_ray(config_of(nowhere, tmp_path / "new" / "dump"), Notes(), fails)
    assert not (tmp_path / "new").exists()
    (tmp_path / "run.json").write_text("{}")
    notes = Notes()
    with pytest.raises(ConfigError, match="holds results of an analysis"):
        run_capture(config_of(nowhere, tmp_path), notes)
    assert not notes.notes  # no rank was started
    for more, message in (
        ({"gpus": 0}, "0 GPUs and 2 CPUs, and ray.gpus is 0; give ray.processes"),
        ({"gpus": 2}, "0 GPUs and 2 CPUs, and ray.gpus is 2; give a lower ray.gpus"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_capture(config_of(inputs, tmp_path / "other", ray=more))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="start this command once"):
        run_capture(config_of(inputs, tmp_path / "other"))


def test_settings_of_ray_are_checked(inputs, tmp_path):
    for more, message in (
        ({"ray": {"gpus": 1.5}}, "ray.gpus: 1.5 given, expected a whole number"),
        ({"engine": "vllm"}, "ray: has an effect only with engine hf"),
        ({"overwrite": True}, "overwrite: several processes would empty the folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            config_of(inputs, tmp_path, **more)
    for number in (0, 0.5, 4):
        assert config_of(inputs, tmp_path, ray={"gpus": number}).ray is not None
