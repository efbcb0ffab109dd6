"""Roles per model: stacked bars with the share of heads that likely have each role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from attention_plasticity.comparison.runs import ComparedRun, short_names
from attention_plasticity.family.panels import WIDE, finish, models_caption, panels
from attention_plasticity.plots.style import QUIET, figure_style, figure_text
from attention_plasticity.roles import NAMES
from attention_plasticity.tables.head_roles import COLOURS
from qk_toolkit.errors import ConfigError

_ROW, _AROUND = 0.24, 0.75  # inches
_LONGEST_NAME = 22  # characters
_HATCH = "/////"
_DETAILS = (
    "A head has the first role whose score reaches its threshold. Hatched: unsure; the role is "
    "likely, but a 95 % interval of a score contains a threshold that decides, or scores on "
    "repeated tokens would decide and are not known. The table has the number of heads that "
    "surely, likely and possibly have each role."
)


def roles_figure(
    table: pd.DataFrame, runs: Sequence[ComparedRun], *, width: float = WIDE
) -> Figure:
    """Draw the shares of `role_counts`, one bar per model."""
    if table.empty:
        raise ConfigError("roles: no model has the table of roles, so there is nothing to draw")
    labels = [run.label for run in runs if run.label in set(table["run"])]
    names = [figure_text(name) for name in short_names(labels, _LONGEST_NAME)]
    shares = {
        name: table.pivot(index="run", columns="role", values=f"{name}_share").reindex(labels)
        for name in ("sure", "likely")
    }
    shown = [role for role in NAMES if (shares["likely"][role] > 0).any()]
    with figure_style():
        figure, [axes] = panels(1, width, _AROUND + _ROW * len(labels))
        start = np.zeros(len(labels))  # (models,)
        for role in shown:
            sure, likely = (
                100.0 * shares[name][role].to_numpy(np.float64) for name in ("sure", "likely")
            )
            places: Any = {"y": range(len(labels)), "height": 0.72, "linewidth": 0.4}
            places |= {"facecolor": COLOURS[role], "edgecolor": "white"}
            axes.barh(width=sure, left=start, **places)
            axes.barh(width=likely - sure, left=start + sure, hatch=_HATCH, **places)
            start = start + likely
        axes.set_yticks(range(len(labels)), names)
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of heads (%)")
        handles = [Patch(label=role, facecolor=COLOURS[role]) for role in shown]
        handles.append(Patch(label="unsure", facecolor=QUIET, edgecolor="white", hatch=_HATCH))
        others = [run.label for run in runs if run.label not in set(labels)]
        missing = f"No table of roles: {', '.join(others)}." if others else ""
        what = "Share of the heads of each model that likely have each role, one bar per model."
        caption = models_caption(what, runs, [_DETAILS, missing])
        return finish(figure, "Roles of heads", [], handles, caption)
