"""Map of the roles of heads, layer × head."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from attention_plasticity.plots.layer_rows import label_axes, layers_left_out, mark_gaps
from attention_plasticity.plots.style import FAINT, figure_style, legend_above, new_figure
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.roles import MIXED, NAMES, REPEATED_DECIDE, ROLES
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.head_roles import (
    COLOURS,
    is_unsure,
    repeated_decides,
    require_roles,
)
from attention_plasticity.tables.profiles import HEAD
from qk_toolkit.formatting import count

Floats = npt.NDArray[np.float64]

FADED = 0.6  # share of white in the colour of an unsure head
_LEGEND_ROW = 0.16  # inches
_MOST_LINES = 48  # layers or heads between which there are lines


def roles_figure(roles: pd.DataFrame, **texts: Unpack[TextOptions]) -> Figure:
    """Draw the role of every head as a colour. Heads that are not in the table are blank.

    Heads whose role is unsure have the colour of their likely role, faded. The legend has the
    number of heads that surely have each role, and of those that are unsure. Rows are the layers of
    the table; a dashed line marks layers that are left out between them.

    `roles` has one row per query head, such as `Run.table("roles")`.

    Examples:
        >>> import pandas as pd
        >>> from attention_plasticity.plots import roles_figure
        >>> names = ["previous", "unsure", "far"]
        >>> roles = pd.DataFrame({"layer": [0, 0, 1], "q_head": [0, 1, 0], "role": names})
        >>> figure = roles_figure(roles.assign(likely_role=["previous", "local", "far"]))
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['previous (1)', 'local (0)', 'far (1)', 'faded: unsure (1)']
    """
    words = Words(**texts)
    require_columns(roles, [*HEAD, "role", "likely_role"], "the table of roles")
    require_roles(roles, "the table of roles")
    layers = np.unique(roles["layer"].to_numpy(np.int64))
    picture = role_grid(roles)  # (layers, heads, rgb)
    unsure, undecided = (int(part(roles).sum()) for part in (is_unsure, repeated_decides))
    counts = roles["role"].value_counts()
    drawn = [name for name in NAMES if (roles["likely_role"] == name).any()]
    with figure_style():
        handles = [Patch(color=COLOURS[name]) for name in drawn]
        labels = [f"{name} ({counts.get(name, 0):,})" for name in drawn]
        if unsure:
            handles.append(Patch(facecolor="#ececec", edgecolor=FAINT, linewidth=0.6))
            labels.append(f"faded: unsure ({unsure:,})")
        height = min(6.5, max(2.6, 1.4 + 0.085 * len(layers)))
        figure, axes = new_figure(height=height)
        axes.imshow(picture, aspect="auto", interpolation="nearest")
        label_axes(axes, layers)
        _separate(axes, *picture.shape[:2])
        mark_gaps(axes, layers)
        rows = legend_above(axes, handles, labels)
        figure.set_figheight(height + _LEGEND_ROW * rows)
        left_out, left_out_sentence = layers_left_out(layers)
        missing = int(np.isnan(picture[..., 0]).sum())
        notes = [
            words.heads(len(roles)),
            f"{missing:,} without known attention or not captured: blank" if missing else None,
            left_out,
            f"{REPEATED_DECIDE} in {count(undecided, 'head')}" if undecided else None,
            "unsure: a 95 % interval contains a threshold" if unsure > undecided else None,
        ]
        caption = words.caption(
            len(roles),
            "Role of every query head, by layer and head. A head has the first of these roles "
            f"whose score reaches its threshold: {_meanings()}.",
            "Mixed: no score reaches its threshold." if MIXED in drawn else None,
            _unsure_sentence(unsure, undecided),
            left_out_sentence,
        )
        words.write(figure, axes, "Roles of heads", notes, caption, rows)
    return figure


def _unsure_sentence(unsure: int, undecided: int) -> str | None:
    """Why some heads are faded; None if there are none."""
    if not unsure:
        return None
    reasons = [
        f"scores on repeated tokens, which would decide, are not known in {undecided:,} of them"
        if undecided
        else "",
        f"a 95 % interval contains a threshold in {unsure - undecided:,} of them"
        if unsure > undecided
        else "",
    ]
    return (
        f"The role of {count(unsure, 'head')} is unsure, and the colour, that of the likely role, "
        f"is faded: {' and '.join(filter(None, reasons))}."
    )


def _separate(axes: Axes, layers: int, heads: int) -> None:
    """Thin white lines between heads, because neighbours often have one colour."""
    width = 0.6 if max(layers, heads) <= _MOST_LINES else 0.0
    axes.hlines(np.arange(1, layers) - 0.5, -0.5, heads - 0.5, color="white", linewidth=width)
    axes.vlines(np.arange(1, heads) - 0.5, -0.5, layers - 0.5, color="white", linewidth=width)


def role_grid(roles: pd.DataFrame) -> Floats:
    """(layers of the table × heads × 3) colours; NaN if the table does not have the head."""
    layers, row = np.unique(roles["layer"].to_numpy(np.int64), return_inverse=True)
    grid = np.full((len(layers), roles["q_head"].max() + 1, 3), np.nan)
    colours = [
        _faded(COLOURS[name]) if unsure else to_rgb(COLOURS[name])
        for name, unsure in zip(roles["likely_role"], is_unsure(roles), strict=True)
    ]
    grid[row, roles["q_head"]] = colours
    return grid


def _faded(colour: str) -> tuple[float, float, float]:
    red, green, blue = (FADED + (1 - FADED) * part for part in to_rgb(colour))
    return red, green, blue


def _meanings() -> str:
    return "; ".join(f"{role.name} ({role.meaning})" for role in ROLES)
