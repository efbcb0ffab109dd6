"""Plasticity at one position and rotary phase of heads, by role."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attention_plasticity.metrics import ALIGNED, METRICS, PHASE
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.intervals import whiskers
from attention_plasticity.plots.phase import has_phase
from attention_plasticity.plots.shown import NONE_AT_ONE_POSITION
from attention_plasticity.plots.style import FAINT, INK, QUIET, figure_style, new_figure
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.roles import NAMES
from attention_plasticity.tables.head_roles import COLOURS, is_unsure, require_roles
from attention_plasticity.tables.intervals import mean_half_width, mean_of_heads
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

Floats = npt.NDArray[np.float64]

_SPREAD = 0.24  # of the points of a role, up and down
_APART = 0.2  # the mean is below the points
_ROW = 0.36  # inches


def by_role_figure(
    metrics: pd.DataFrame,
    roles: pd.DataFrame | None = None,
    *,
    influences: pd.DataFrame | None = None,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw plasticity at one position and rotary phase, one point per head, one row per role.

    A black mark below the points is the mean over the heads of a role. With the table of
    `influences` of the run it has a 95 % interval over texts. Heads whose role is unsure are left
    out. The points of a row are spread up and down so that they can be told apart.

    `metrics` has one row per query head, such as `Run.head_metrics`, and `roles` is
    `Run.table("roles")`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import by_role_figure
        >>> run = open_run("results/sample")
        >>> figure = by_role_figure(run.head_metrics, run.table("roles"), influences=run.influences)
        >>> [axes.get_xlabel() for axes in figure.axes]
        ['plasticity at one position', 'rotary phase']
    """
    words = Words(**texts)
    if roles is None:
        raise ConfigError("the table of heads: has no roles; give the folder of the run")
    if not has_phase(metrics):
        raise ConfigError(f"the table of heads: {NONE_AT_ONE_POSITION}")
    require_roles(roles, "the table of roles")
    joined = metrics.merge(roles[[*HEAD, "role"]], on=HEAD)
    known = joined[joined[ALIGNED].notna() & joined[PHASE].notna()]
    unsure, sure = int(is_unsure(known).sum()), known[~is_unsure(known)]
    if sure.empty:
        raise ConfigError("the table of heads: no head has a role that is sure")
    drawn = [name for name in NAMES if (sure["role"] == name).any()]
    members = [sure[sure["role"] == name] for name in drawn]
    with figure_style():
        figure, panels = new_figure(height=1.55 + _ROW * len(drawn), ncols=2, sharey=True)
        halves = [
            _draw_panel(axes, drawn, members, column, influences)
            for axes, column in zip(panels, (ALIGNED, PHASE), strict=True)
        ]
        labels = [
            f"{name}\n{count(len(part), 'head')}" for name, part in zip(drawn, members, strict=True)
        ]
        panels[0].set_yticks(range(len(drawn)), labels)
        panels[0].set_ylim(len(drawn) - 0.5, -0.5)
        has_interval = bool(np.isfinite(np.concatenate(halves)).any())
        mark = "black: mean over heads" + (
            " and its 95 % interval over texts" if has_interval else ""
        )
        left_out = f"{count(unsure, 'head')} of unsure role left out" if unsure else None
        notes = [words.heads(len(sure), len(metrics)), left_out, mark]
        groups = sure.reindex(columns=["n_text_groups"])["n_text_groups"]
        caption = words.caption(
            len(sure),
            "Plasticity at one position (left) and rotary phase (right) of query heads by their "
            "role, one point per head. Points of a row are spread up and down only so that they "
            "can be told apart. Black, below the points: mean over the heads of a role.",
            f"{count(unsure, 'head')} with an unsure role {'is' if unsure == 1 else 'are'} left "
            "out."
            if unsure
            else None,
            interval_sentence("Lines are 95 % intervals of the means,", groups)
            if has_interval
            else None,
            plasticity=AT_ONE_POSITION,
        )
        words.write(figure, None, "Plasticity by role", notes, caption)
    return figure


def _draw_panel(
    axes: Axes,
    names: list[str],
    members: list[pd.DataFrame],
    column: str,
    influences: pd.DataFrame | None,
) -> Floats:
    """Draw the points and means of a column. Returns half widths of the means."""
    halves = []
    for row, (name, heads) in enumerate(zip(names, members, strict=True)):
        values = heads[column].to_numpy(np.float64)
        axes.scatter(
            values,
            row - _APART / 2 + spread(values),
            s=10,
            color=COLOURS[name],
            edgecolors=QUIET,
            alpha=0.85,
            linewidths=0.3,
            label=name,
        )
        mean = mean_of_heads(heads, influences, column)
        half = mean_half_width(mean)
        place = row + _SPREAD + _APART / 2
        whiskers(axes, [mean.value], [place], [half], INK, horizontal=True)
        axes.plot([mean.value], [place], color=INK, marker="D", markersize=3, linestyle="none")
        halves.append(half)
    axes.hlines(
        np.arange(1, len(names)) - 0.5, 0, 1, FAINT, transform=axes.get_yaxis_transform(), lw=0.4
    )
    axes.set_xlabel(METRICS[column].label)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=FAINT, linewidth=0.4)
    axes.tick_params(axis="y", length=0)
    if column == PHASE:
        axes.axvline(0.0, color=QUIET, linewidth=0.6)
    return np.array(halves)


def spread(values: Floats, size: float = _SPREAD) -> Floats:
    """(heads,) shifts of points up to `size`: neighbours in value get different ones; one none.

    The shifts follow a sequence that fills the range evenly, so that the figure is always the same.
    """
    golden = (np.sqrt(5.0) - 1.0) / 2.0
    order = np.argsort(np.argsort(values, kind="stable"), kind="stable")  # rank of every head
    if len(values) == 1:
        return np.zeros(1)
    return np.asarray(size * (2.0 * ((order * golden) % 1.0) - 1.0))
