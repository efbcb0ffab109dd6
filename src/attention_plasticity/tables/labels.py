"""Names of runs that are shown together."""

from __future__ import annotations

from collections.abc import Sequence

from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import resolved


def labels_of(runs: Sequence[FinishedRun], given: Sequence[str] | None = None) -> list[str]:
    """A name for each run: as given, or its model, with the folder for runs of one model."""
    if given is None:
        models = [
            run.model_name if run.selection is None else f"{run.model_name} ({run.selection})"
            for run in runs
        ]
        named = [
            model if models.count(model) == 1 else f"{model} ({clean(resolved(run.folder).name)})"
            for model, run in zip(models, runs, strict=True)
        ]
        return [
            name if named.count(name) == 1 else f"{name} {named[: place + 1].count(name)}"
            for place, name in enumerate(named)
        ]
    labels = [clean(label) for label in given]
    if len(labels) != len(runs):
        raise ConfigError(f"labels: {len(labels)} given for {len(runs)} runs; give one for each")
    if not all(labels) or len(set(labels)) < len(labels):
        raise ConfigError(f"labels: must be different and not empty, got {', '.join(labels)}")
    return labels
