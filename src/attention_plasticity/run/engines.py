"""The engine of a run: a function that computes groups of heads and yields results as they come.

Workers read the dump themselves; only groups and results pass through this process. All engines
give the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from attention_plasticity.run.local_engine import EarlyWorkers, run_local
from qk_toolkit.ray_cluster import import_ray

if TYPE_CHECKING:
    from attention_plasticity.config import RunnerConfig
    from attention_plasticity.run.tasks import Computed, OutOfTasks, TaskQueue


def require_engine(config: RunnerConfig) -> None:
    """Raise a `ConfigError` if the package of the engine is not installed."""
    if config.engine == "ray":
        import_ray()


def make_engine(
    tasks: TaskQueue,
    config: RunnerConfig,
    workers: EarlyWorkers | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Generator[Computed | OutOfTasks]:
    """Compute tasks with the engine of the config. Closing the generator stops its workers.

    The first tasks are computed while the others are prepared. An engine of an open queue yields
    `OutOfTasks` while its workers compute the last tasks; the caller then adds tasks, or closes the
    queue. `note` gets messages for the user.
    """
    if config.engine == "ray":
        from attention_plasticity.run.ray_engine import run_ray

        return run_ray(tasks, config, note)
    return run_local(tasks, config.workers, workers)
