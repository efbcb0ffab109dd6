"""Rank and number of the processes that share a capture.

`torchrun` and `accelerate launch` set RANK and WORLD_SIZE, `srun` sets its own variables. The
processes share only the folder of the dump, where they claim chunks of texts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from qk_toolkit.errors import ConfigError

_NAMES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and the number of processes."""

    rank: int = 0
    world: int = 1
    local: int = 0
    knows_folder_is_shared: bool = False  # it was tested before

    @property
    def device(self) -> str:
        """The device of this process: a GPU of those that it sees, or cpu.

        A launcher may show every process one GPU only, or not set the local rank.
        """
        import torch

        if not torch.cuda.is_available():
            return "cpu"
        return f"cuda:{self.local % torch.cuda.device_count()}"


def ranks_from(environment: Mapping[str, str] = os.environ) -> Ranks:
    """The ranks in the launcher's variables; a single process if there are none."""
    for rank_name, world_name, local_name in _NAMES:
        if rank_name not in environment or world_name not in environment:
            continue
        try:
            rank, world = int(environment[rank_name]), int(environment[world_name])
            local = int(environment.get(local_name, rank))
        except ValueError as error:
            names = f"{rank_name}, {world_name}, {local_name}"
            raise ConfigError(f"{names}: expected numbers ({error})") from error
        if world < 1:
            raise ConfigError(f"{world_name}: {world} given, expected 1 or more")
        if not 0 <= rank < world:
            raise ConfigError(f"{rank_name}: {rank} given, expected 0 to {world - 1}")
        if local < 0:
            raise ConfigError(f"{local_name}: {local} given, expected 0 or more")
        return Ranks(rank, world, local)
    return Ranks()
