"""Which process of several one is, by the variables that launchers set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from qk_sniffer.capture.ranks import Ranks, ranks_from
from qk_toolkit.errors import ConfigError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
ACCELERATE = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "ACCELERATE_MIXED_PRECISION": "no",
}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_ID": "17",
}
SBATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}  # not started by srun


def test_launchers() -> None:
    for environment, ranks in (
        (TORCHRUN, Ranks(5, 8, 1)),
        (ACCELERATE, Ranks(1, 2, 1)),
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


def test_every_process_has_a_gpu_of_those_that_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_invalid_variables_are_named_in_one_line() -> None:
    for environment, message in (
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK: 4 given, expected 0 to 3"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK: -1 given, expected 0 to 3"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "'one'"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "x"}, "LOCAL_RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "LOCAL_RANK"),
        ({"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID: 9 given"),
    ):
        with pytest.raises(ConfigError) as caught:
            ranks_from(environment)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_processes_wait_for_each_other() -> None:
    code = (
        "import time; from qk_sniffer.capture.ranks import ranks_from; ranks = ranks_from();"
        "time.sleep(0.5 * ranks.rank); came = time.time(); ranks.wait_for_all();"
        "print(came, time.time())"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **meeting, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    came, left = zip(*told, strict=True)
    assert min(map(float, left)) >= max(map(float, came))


def test_processes_that_cannot_meet_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="Start them with torchrun"):
        Ranks(0, 2).wait_for_all()
