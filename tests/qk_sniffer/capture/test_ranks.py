"""Which process of several one is, by the variables that launchers set."""

import pytest
import torch

from qk_sniffer.capture.ranks import Ranks, ranks_from
from qk_sniffer.capture.run import run_capture
from qk_sniffer.config import make_config
from qk_toolkit.errors import ConfigError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
SBATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}  # not started by srun


def test_launchers():
    for environment, ranks in (
        (TORCHRUN, Ranks(5, 8, 1)),
        (SRUN, Ranks(3, 4, 1)),
        ({**SRUN, **TORCHRUN}, Ranks(5, 8, 1)),  # torchrun inside a Slurm job
        (SBATCH, Ranks()),
        ({}, Ranks(0, 1, 0)),
        ({"RANK": "3"}, Ranks()),
        ({"WORLD_SIZE": "4"}, Ranks()),
        ({"LOCAL_RANK": "2"}, Ranks()),
        ({"RANK": "1", "WORLD_SIZE": "4"}, Ranks(1, 4, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Ranks()),
    ):
        assert ranks_from(environment) == ranks


def test_every_process_has_a_gpu_of_those_that_it_sees(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for visible, environment, device in (
        (1, SRUN, "cuda:0"),  # with --gpus-per-task=1
        (4, SRUN, "cuda:1"),
        (4, {"RANK": "6", "WORLD_SIZE": "8"}, "cuda:2"),
        (1, {}, "cuda:0"),
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda visible=visible: visible)
        assert ranks_from(environment).device == device
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ranks_from(SRUN).device == "cpu"


def test_invalid_variables_are_named_in_one_line():
    for environment, message in (
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK: 4 given, expected 0 to 3"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK: -1 given, expected 0 to 3"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "'one'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "LOCAL_RANK"),
        ({"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID: 9 given"),
    ):
        with pytest.raises(ConfigError) as caught:
            ranks_from(environment)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_several_processes_do_not_overwrite(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = make_config(
        model={"name": "model"},
        dataset={"path": "texts"},
        output={"data_root": str(tmp_path / "dump")},
        overwrite=True,
    )
    with pytest.raises(ConfigError, match=r"overwrite: 2 processes .*; remove .*dump first"):
        run_capture(config)
    assert not (tmp_path / "dump").exists()
