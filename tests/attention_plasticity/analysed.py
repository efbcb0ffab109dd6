"""Runs of several dumps or settings in one worker process; to start one for each takes long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attention_plasticity.config import make_config
from attention_plasticity.run.runner import run_analyses
from attention_plasticity.run.write import Outcome


def analyse_together(runs: dict[Path, tuple[Path, dict[str, Any]]]) -> dict[Path, Outcome]:
    """The outcomes of runs by their folders; each has a dump and settings."""
    configs = [
        make_config(dataset_local_root=str(dump), output_dir=str(out), max_workers=1, **settings)
        for out, (dump, settings) in runs.items()
    ]
    outcomes = list(run_analyses(configs))
    found = {one.place.folder: one for one in outcomes if isinstance(one, Outcome)}
    assert len(found) == len(runs), outcomes
    return found
