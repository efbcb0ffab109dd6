"""Heat map of models and relative depth, one panel per metric."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.comparison.runs import ComparedRun, short_names
from attention_plasticity.family.panels import WIDE, finish, models_caption, panels, require_rows
from attention_plasticity.plots.shown import column_label
from attention_plasticity.plots.style import (
    SEQUENTIAL,
    SIGNED,
    figure_style,
    figure_text,
    label_lines,
)

_ROW, _AROUND = 0.19, 1.1  # inches
_LONGEST_NAME = 18  # characters
_NOTHING = "#ececec"
_WHAT = (
    "Mean over heads by relative depth, one row per model: the layers of a model are divided into "
    "{parts} equal parts of its depth, from the first layer (0 %) to the last (100 %), and a layer "
    "belongs to the part that has its middle. A model with fewer layers has in each part the layer "
    "at the middle of the part. Shown: {metrics}. Light grey: no head "
    "with a value in this part."
)
_ERRORS = (
    "The table depth has the 95 % interval over texts of every cell; it is about the analysed "
    "heads, also if they are a random sample."
)


def depth_figure(
    table: pd.DataFrame, runs: Sequence[ComparedRun], *, width: float = WIDE
) -> Figure:
    """Draw a map of models and relative depth for every metric of `depth_table`."""
    require_rows(table, "depth")
    metrics = list(dict.fromkeys(table["metric"]))
    labels = [run.label for run in runs if run.label in set(table["run"])]
    names = [figure_text(name) for name in short_names(labels, _LONGEST_NAME)]
    parts = round(1.0 / float((table["depth_end"] - table["depth_start"]).iloc[0]))
    with figure_style():
        figure, places = panels(len(metrics), width, _AROUND + _ROW * len(labels))
        for axes, metric in zip(places, metrics, strict=True):
            rows = table[table["metric"] == metric]
            values = rows.pivot(index="run", columns="part", values="mean")
            grid = values.reindex(index=labels, columns=range(1, parts + 1)).to_numpy(np.float64)
            signed = bool((grid[np.isfinite(grid)] < 0.0).any())
            reach = float(np.nanmax(np.abs(grid)))
            axes.set_facecolor(_NOTHING)
            image = axes.imshow(
                grid,  # (models, parts)
                aspect="auto",
                interpolation="none",
                cmap=SIGNED if signed else SEQUENTIAL,
                vmin=-reach if signed else None,
                vmax=reach if signed else None,
                extent=(0.0, 100.0, len(labels) - 0.5, -0.5),
            )
            axes.set_yticks(range(len(labels)), names)
            axes.tick_params(axis="y", length=0)
            axes.set_xticks([0, 20, 40, 60, 80, 100])
            axes.set_xlabel("relative depth (%)")
            bar = figure.colorbar(image, ax=axes, pad=0.02)
            bar.outline.set_visible(False)
            room = width / max(1, round(width / 3.5)) * 0.72
            axes.set_title(label_lines(column_label(metric), room), fontweight="normal")
        listed = ", ".join(column_label(metric) for metric in metrics)
        caption = models_caption(_WHAT.format(parts=parts, metrics=listed), runs, [_ERRORS])
        return finish(figure, "Means over heads, by relative depth", [], [], caption)
