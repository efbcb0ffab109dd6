"""Rank and number of the processes that share a capture.

`torchrun` and `accelerate launch` set RANK and WORLD_SIZE, `srun` sets its own variables. The
processes share only the folder of the dump. The last process to finish completes the dump.
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

    def owns(self, batch: int) -> bool:
        """Whether this process runs the batch."""
        return batch % self.world == self.rank

    def wait_for_all(self) -> None:
        """Wait until every process has called this method."""
        if self.world == 1:
            return
        import torch.distributed as dist

        try:
            dist.init_process_group("gloo", rank=self.rank, world_size=self.world)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                f"overwrite: the processes cannot connect to each other ({error}). Start them with "
                "torchrun, or remove the folder by hand and leave overwrite out."
            ) from error
        dist.barrier()
        dist.destroy_process_group()


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
