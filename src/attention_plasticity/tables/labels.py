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
        return [
            model if models.count(model) == 1 else f"{model} ({place})"
            for model, place in zip(models, _places(runs), strict=True)
        ]
    labels = [clean(label) for label in given]
    if len(labels) != len(runs):
        raise ConfigError(f"labels: {len(labels)} given for {len(runs)} runs; give one for each")
    if not all(labels) or len(set(labels)) < len(labels):
        raise ConfigError(f"labels: must be different and not empty, got {', '.join(labels)}")
    return labels


def _places(runs: Sequence[FinishedRun]) -> list[str]:
    """The folder of each run, with as many folders above it as tell them apart.

    A run that is given twice has a number.
    """
    parts = [resolved(run.folder).parts for run in runs]
    places: list[str] = []
    for length in range(1, max(map(len, parts), default=0) + 1):
        places = [clean("/".join(one[-length:])) for one in parts]
        if len(set(places)) == len(set(parts)):
            break
    return [
        place if places.count(place) == 1 else f"{place}, {places[: number + 1].count(place)}"
        for number, place in enumerate(places)
    ]
