"""Several processes on one capture: who am I, and which share is mine.

`torchrun` and `accelerate launch` set RANK and WORLD_SIZE, `srun` its own names. Processes never
talk to each other; they meet in the dump's folder, where the last one to finish completes it.
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
    """A process's number among those that share a capture."""

    rank: int = 0
    world: int = 1
    local: int = 0

    def owns(self, batch: int) -> bool:
        """Whether a batch is this process's to run."""
        return batch % self.world == self.rank

    def wait_for_all(self) -> None:
        """Return when every process has come here."""
        if self.world == 1:
            return
        import torch.distributed as dist

        try:
            dist.init_process_group("gloo", rank=self.rank, world_size=self.world)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                "overwrite: the processes cannot find each other to agree on starting anew "
                f"({error}). Start them with torchrun, or remove the folder by hand."
            ) from error
        dist.barrier()
        dist.destroy_process_group()


def ranks_from(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Read the launcher's variables; a process started without one is alone."""
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
