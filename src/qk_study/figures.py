"""The figures of a study: those that show several models, and all figures of every run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attention_plasticity.figures.registry import file_names, left_out
from qk_study.results import StudyResults
from qk_study.settings import StudySettings
from qk_toolkit.errors import ConfigError, ToolkitError, in_short
from qk_toolkit.settings import split_names


@dataclass
class DrawnFigures:
    """The figures that were drawn, and those that were not."""

    of_study: list[str] = field(default_factory=list)  # names of files, in `figures/`
    of_models: dict[str, list[str]] = field(default_factory=dict)  # by the folder of the model
    left_out: list[str] = field(default_factory=list)  # sentences with the reasons
    failures: list[str] = field(default_factory=list)


_OF_SEVERAL = {"profiles", "matched-heads"}
"""Figures that a study of one model does not name, unless they are asked for."""


def wanted_figures(settings: StudySettings) -> tuple[str, ...] | None:
    """The names of the figures that are wanted; None: all. Raises for names that do not exist."""
    given, where = settings.content.figures, f"{settings.file}: figures"
    if given in ("all", "none"):
        return None if given == "all" else ()
    listed = split_names(given)
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"{where}: expected all, none or a list of names, got {in_short(given)}")
    known = [*file_names("runs"), *file_names()]
    for name in listed:
        if name not in known:
            close = difflib.get_close_matches(name[:100], known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise ConfigError(f"{where}: {in_short(name)}: unknown figure; {hint}")
    return tuple(dict.fromkeys(listed))


def draw_figures(
    results: StudyResults,
    folder: Path,
    wanted: Sequence[str] | None,
    show: Callable[[str], None] = lambda text: None,
) -> DrawnFigures:
    """Draw the wanted figures, each with its caption beside it. `show` gets what is drawn next.

    A figure that fails is named and does not stop the others.
    """
    from attention_plasticity.figures.saving import save_all

    form, drawn = results.settings.content.format, DrawnFigures()
    compared = results.comparison
    missing = left_out(compared)
    for name in _chosen(wanted, file_names("runs")):
        if name in missing:
            if wanted is not None or len(results.runs) > 1 or name not in _OF_SEVERAL:
                drawn.left_out.append(f"{name} (needs {missing[name]})")
            continue
        show(name)
        try:
            drawn.of_study += [path.name for path in save_all(compared, folder, form, [name])]
        except ToolkitError as error:
            drawn.failures.append(f"{name}.{form}: {error}")
    names = _chosen(wanted, file_names())
    for plan, run in results.finished if names else []:
        show(f"figures of {plan.label}")
        try:
            files = save_all(run, folder / plan.model.folder, form, names, model_name=plan.label)
            drawn.of_models[plan.model.folder] = [path.name for path in files]
        except ToolkitError as error:
            drawn.failures.append(f"{plan.label}: {error}")
    drawn.left_out += _left_out_of_runs(results, names)
    return drawn


def _chosen(wanted: Collection[str] | None, known: Sequence[str]) -> list[str]:
    return [name for name in known if wanted is None or name in wanted]


def _left_out_of_runs(results: StudyResults, wanted: Collection[str]) -> list[str]:
    """Figures that the tables of some runs do not allow, with the reasons and the models."""
    labels: dict[tuple[str, str], list[str]] = {}
    for plan, run in results.finished:
        for name, reason in left_out(run).items():
            if name in wanted:
                labels.setdefault((name, f"needs {reason}"), []).append(plan.label)
    everybody = len(results.finished)
    return [
        f"{name} of {'every model' if len(found) == everybody else ', '.join(found)} ({reason})"
        for (name, reason), found in labels.items()
    ]
