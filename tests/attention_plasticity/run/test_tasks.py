"""The queue of tasks: those of a cancelled job are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_plasticity.config import make_config
from attention_plasticity.read.texts import UNKNOWN_TEXTS
from attention_plasticity.run.tasks import Job, Task, TaskQueue
from attention_plasticity.run.worker import WorkerLog


def job_in(folder: Path) -> Job:
    config = make_config(dataset_local_root=str(folder))
    return Job(folder, UNKNOWN_TEXTS, config, WorkerLog(folder / "log"))


def test_tasks_of_a_cancelled_job_are_left_out(tmp_path: Path) -> None:
    groups: list[Any] = [object() for _ in range(3)]
    full, other = job_in(tmp_path), job_in(tmp_path)
    queue = TaskQueue([Task(full, groups[0]), Task(full, groups[1]), Task(other, groups[2])])
    assert queue.take() == Task(full, groups[0])
    assert queue  # the next task waits now
    full.cancelled.set()
    assert queue.take() == Task(other, groups[2])
    queue.put_back([Task(full, groups[0])])
    assert not queue
    with pytest.raises(IndexError):
        queue.take()
