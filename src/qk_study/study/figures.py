"""The figures of a study: those that show several models, and all figures of every run.

A figure of several models is an entry of `FIGURES`: a function that takes the results of the study
and returns a matplotlib `Figure` with its caption (`set_caption`), and a function that says why the
study does not have this figure, or None. The figure is then drawn, listed in the README, and a
possible name in `figures` of the YAML file.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attention_plasticity.family.layer_kinds import BY_ATTENTION, BY_ROPE, has_two_kinds
from attention_plasticity.plots.all_figures import FIGURES as FIGURES_OF_RUNS
from attention_plasticity.plots.all_figures import left_out, save_all
from qk_study.study.results import StudyResults
from qk_study.study.settings import StudySettings
from qk_toolkit.errors import ConfigError, ToolkitError, in_short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StudyFigure:
    """A figure that shows several models."""

    draw: Callable[[StudyResults], Figure]
    obstacle: Callable[[StudyResults], str | None]  # why it cannot be drawn


@dataclass
class DrawnFigures:
    """The figures that were drawn, and those that were not."""

    of_study: list[str] = field(default_factory=list)  # names of files, in `figures/`
    of_models: dict[str, list[str]] = field(default_factory=dict)  # by the folder of the model
    left_out: list[str] = field(default_factory=list)  # sentences with the reasons
    failures: list[str] = field(default_factory=list)


def _few_models(results: StudyResults) -> str | None:
    return None if results.comparison is not None else "needs two models"


def _profiles(results: StudyResults) -> Figure:
    assert results.comparison is not None
    return results.comparison.plot("profiles")


def _no_lengths(results: StudyResults) -> str | None:
    return "needs plasticity at one position" if results.lengths.empty else None


def _lengths(results: StudyResults) -> Figure:
    from attention_plasticity.family.lengths_figure import lengths_figure

    return lengths_figure(results.lengths, results.runs)


def _phase_fifths(results: StudyResults) -> Figure:
    from attention_plasticity.family.lengths_figure import phase_fifths_figure

    return phase_fifths_figure(results.lengths, results.runs)


def _depth(results: StudyResults) -> Figure:
    from attention_plasticity.family.depth_figure import depth_figure

    return depth_figure(results.of_shown_metrics(results.depth), results.runs)


def _relations(results: StudyResults) -> Figure:
    from attention_plasticity.family.relations_figure import relations_figure

    found = results.relations
    assert found is not None
    return relations_figure(
        found.relations, found.metrics, found.scores, results.runs, results.families
    )


def _no_relations(results: StudyResults) -> str | None:
    if results.relations is not None:
        return None
    return "needs scores" if results.scores is None else "needs two models"


def _no_trajectories(results: StudyResults) -> str | None:
    return None if results.checkpoints else "needs two checkpoints of one family"


def _trajectories(results: StudyResults) -> Figure:
    from attention_plasticity.family.checkpoints_figure import checkpoints_figure

    shown = results.of_shown_metrics(results.trajectories)
    return checkpoints_figure(shown, results.checkpoints)


def _one_kind(divided: str) -> Callable[[StudyResults], str | None]:
    """Why there is no figure of kinds of layers."""
    kinds = "full and window layers" if divided == BY_ATTENTION else "RoPE and NoPE layers"
    reason = f"needs a model with {kinds}"
    return lambda results: None if has_two_kinds(results.layer_kinds, divided) else reason


def _layer_kinds(divided: str) -> Callable[[StudyResults], Figure]:
    def draw(results: StudyResults) -> Figure:
        from attention_plasticity.family.layer_kinds_figure import layer_kinds_figure

        shown = results.of_shown_metrics(results.layer_kinds)
        return layer_kinds_figure(shown, results.runs, divided)

    return draw


def _no_roles(results: StudyResults) -> str | None:
    return "needs attention columns in a dump" if results.roles.empty else None


def _roles(results: StudyResults) -> Figure:
    from attention_plasticity.family.roles_figure import roles_figure

    return roles_figure(results.roles, results.runs)


def _no_bands(results: StudyResults) -> str | None:
    return "needs the rotary embedding in a dump" if results.bands.empty else None


def _bands(results: StudyResults) -> Figure:
    from attention_plasticity.family.bands_figure import bands_figure

    return bands_figure(results.bands, results.runs)


def _no_pairs(results: StudyResults) -> str | None:
    return "needs two models of one family and architecture" if results.matched.empty else None


def _matched(results: StudyResults) -> Figure:
    from attention_plasticity.family.matched_figure import matched_figure

    return matched_figure(results.matched, results.pairs, results.map_metrics[0])


FIGURES: dict[str, StudyFigure] = {
    "profiles": StudyFigure(_profiles, _few_models),
    "lengths": StudyFigure(_lengths, _no_lengths),
    "phase-fifths": StudyFigure(_phase_fifths, _no_lengths),
    "depth": StudyFigure(_depth, lambda results: None),
    "layer-types": StudyFigure(_layer_kinds(BY_ATTENTION), _one_kind(BY_ATTENTION)),
    "rope-layers": StudyFigure(_layer_kinds(BY_ROPE), _one_kind(BY_ROPE)),
    "role-shares": StudyFigure(_roles, _no_roles),
    "band-shares": StudyFigure(_bands, _no_bands),
    "relations": StudyFigure(_relations, _no_relations),
    "trajectories": StudyFigure(_trajectories, _no_trajectories),
    "matched-heads": StudyFigure(_matched, _no_pairs),
}


def wanted_figures(settings: StudySettings) -> tuple[str, ...] | None:
    """The names of the figures that are wanted; None: all. Raises for names that do not exist."""
    given, where = settings.content.figures, f"{settings.file}: figures"
    if given in ("all", "none"):
        return None if given == "all" else ()
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"{where}: expected all, none or a list of names, got {in_short(given)}")
    known = [*FIGURES, *FIGURES_OF_RUNS]
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

    A figure that fails is named and does not stop the others. Figures of a run that an earlier
    command has drawn are kept.
    """
    from attention_plasticity.plots.saving import save_figure
    from qk_study.study.drawn_before import DrawnBefore

    form, drawn = results.settings.content.figure_format, DrawnFigures()
    for name, figure in FIGURES.items():
        if not _is_wanted(name, wanted):
            continue
        if reason := figure.obstacle(results):
            drawn.left_out.append(f"{name} ({reason})")
            continue
        show(name)
        file = f"{name}.{form}"
        try:
            save_figure(figure.draw(results), folder / file)
            drawn.of_study.append(file)
        except ToolkitError as error:
            drawn.failures.append(f"{file}: {error}")
    names = None if wanted is None else [name for name in wanted if name in FIGURES_OF_RUNS]
    for plan, run in results.finished if names is None or names else []:
        own = folder / plan.model.folder
        before = DrawnBefore(run, own, form, names)
        try:
            files = before.files()
            if files is None:
                show(f"figures of {plan.label}")
                files = [path.name for path in save_all(run, own, form, names)]
                before.save(files)
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
                labels.setdefault((name, reason), []).append(plan.label)
    everybody = len(results.finished)
    return [
        f"{name} of {'every model' if len(found) == everybody else ', '.join(found)} ({reason})"
        for (name, reason), found in labels.items()
    ]


def _is_wanted(name: str, wanted: Collection[str] | None) -> bool:
    return wanted is None or name in wanted
