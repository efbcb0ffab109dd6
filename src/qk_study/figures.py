"""The figures of a study: those that show several models, and all figures of every run.

A figure of several models is an entry of `FIGURES`: a function that takes the results of the study
and returns a matplotlib `Figure` with its caption, or the reason why the study does not have it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from attention_plasticity.figures import of_model_heads, of_models
from attention_plasticity.figures.registry import file_names, left_out, save_all
from qk_study.results import StudyResults
from qk_study.settings import StudySettings
from qk_toolkit.errors import ConfigError, ToolkitError, in_short
from qk_toolkit.settings import split_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[StudyResults], "Figure | str"]


@dataclass
class DrawnFigures:
    """The figures that were drawn, and those that were not."""

    of_study: list[str] = field(default_factory=list)  # names of files, in `figures/`
    of_models: dict[str, list[str]] = field(default_factory=dict)  # by the folder of the model
    left_out: list[str] = field(default_factory=list)  # sentences with the reasons
    failures: list[str] = field(default_factory=list)


def _shown(table: pd.DataFrame, results: StudyResults) -> pd.DataFrame:
    """The rows of a table with the metrics of figures, in the order of these metrics."""
    places = {name: place for place, name in enumerate(results.comparison.map_metrics)}
    own = table[table["metric"].isin(places)]
    return own.sort_values("metric", key=lambda names: names.map(places), kind="stable")


def _profiles(results: StudyResults) -> Figure | str:
    runs = results.runs
    return "needs two models" if len(runs) < 2 else of_models.profiles_figure(runs)


def _lengths(results: StudyResults) -> Figure | str:
    table = results.comparison.by("length")
    if table.empty:
        return "needs RoPE-aligned plasticity"
    return of_models.lengths_figure(table, results.runs)


def _depth(results: StudyResults) -> Figure | str:
    return of_models.depth_figure(_shown(results.comparison.by("depth"), results), results.runs)


def _roles(results: StudyResults) -> Figure | str:
    table = results.comparison.role_counts
    if table.empty:
        return "needs attention columns in a dump"
    return of_models.roles_figure(table, results.runs)


def _bands(results: StudyResults) -> Figure | str:
    table = results.comparison.by("band")
    if table.empty:
        return "needs the rotary embedding in a dump"
    return of_models.bands_figure(table, results.runs)


def _matched(results: StudyResults) -> Figure | str:
    runs = results.comparison
    if not runs.pairs:
        return "needs two models of one family and architecture"
    return of_model_heads.matched_figure(runs.matched, runs.pairs, runs.map_metrics[0])


FIGURES: dict[str, Draw] = {
    "profiles": _profiles,
    "lengths": _lengths,
    "depth": _depth,
    "role-shares": _roles,
    "band-shares": _bands,
    "matched-heads": _matched,
}
"""A figure of several models, or the reason why it cannot be drawn."""
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
    known = [*FIGURES, *file_names()]
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
    from attention_plasticity.figures.saving import save_figure

    form, drawn = results.settings.content.format, DrawnFigures()
    for name, draw in FIGURES.items():
        if not _is_wanted(name, wanted):
            continue
        if wanted is None and len(results.runs) < 2 and name in _OF_SEVERAL:
            continue
        file = f"{name}.{form}"
        try:
            figure = draw(results)
            if isinstance(figure, str):
                drawn.left_out.append(f"{name} ({figure})")
                continue
            show(name)
            save_figure(figure, folder / file)
            drawn.of_study.append(file)
        except ToolkitError as error:
            drawn.failures.append(f"{file}: {error}")
    names = None if wanted is None else [name for name in wanted if name in file_names()]
    for plan, run in results.finished if names is None or names else []:
        own = folder / plan.model.folder
        show(f"figures of {plan.label}")
        try:
            files = [path.name for path in save_all(run, own, form, names, model_name=plan.label)]
            drawn.of_models[plan.model.folder] = files
        except ToolkitError as error:
            drawn.failures.append(f"{plan.label}: {error}")
    drawn.left_out += _left_out_of_runs(results, wanted)
    return drawn


def _left_out_of_runs(results: StudyResults, wanted: Collection[str] | None) -> list[str]:
    """Figures that the tables of some runs do not allow, with the reasons and the models."""
    labels: dict[tuple[str, str], list[str]] = {}
    for plan, run in results.finished:
        for name, reason in left_out(run).items():
            if _is_wanted(name, wanted):
                labels.setdefault((name, f"needs {reason}"), []).append(plan.label)
    everybody = len(results.finished)
    return [
        f"{name} of {'every model' if len(found) == everybody else ', '.join(found)} ({reason})"
        for (name, reason), found in labels.items()
    ]


def _is_wanted(name: str, wanted: Collection[str] | None) -> bool:
    return wanted is None or name in wanted
