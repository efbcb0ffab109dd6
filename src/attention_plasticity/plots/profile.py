"""Plasticity by fifths of the context, with the spread over heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.metrics import FIFTH_NAMES
from attention_plasticity.plots.captions import Caption, interval_sentence
from attention_plasticity.plots.intervals import correction_note, interval_note, whiskers
from attention_plasticity.plots.references import (
    Baselines,
    Reference,
    draw_references,
    known_references,
    references_reach,
    references_sentence,
)
from attention_plasticity.plots.settings import Shown
from attention_plasticity.plots.shown import (
    capitalised,
    parts_of_context,
    phase_note,
    phase_sentence,
    shown_plasticity,
)
from attention_plasticity.plots.style import (
    BLUE,
    INK,
    figure_style,
    legend_above,
    new_figure,
    plasticity_axis,
)
from attention_plasticity.plots.texts import draw_texts, texts_by_fifth, texts_note, texts_sentence
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.run.head_means import MeanEstimate
from attention_plasticity.tables.bin_cells import bin_cells
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.intervals import (
    corrected,
    mean_half_width,
    mean_of_heads,
    mean_over_heads,
)
from attention_plasticity.tables.main_plasticity import PlasticityColumns
from qk_toolkit.errors import ConfigError

Floats = npt.NDArray[np.float64]

_BANDS = (0.05, 0.25, 0.75, 0.95)
_SPREADS = ("middle 50 % of heads", "middle 90 % of heads")


def profile_figure(
    metrics: pd.DataFrame,
    *,
    influences: pd.DataFrame | None = None,
    cells: pd.DataFrame | None = None,
    eligible_heads: int | None = None,
    baselines: Baselines | None = None,
    plasticity: Shown | None = None,
    **texts: Unpack[TextOptions],
) -> Figure:
    """Draw the mean over heads per fifth, with bands of the middle 50 % and 90 % of heads.

    The default is plasticity at one position, or over a bucket if no head has it;
    `plasticity="bucket"` shows the latter.
    Values are corrected for bias if it is known. With the table of `influences` of the run,
    whiskers show the 95 % interval of the mean. If the heads were sampled at random from
    `eligible_heads` heads, the interval is that of the mean over all these heads. With its table of
    `cells` or bins, a strip above the x axis has the number of texts that reach each fifth.
    Lines with bands show the means of `baselines`, such as `Run.baselines`.

    `metrics` has one row per query head, such as `Run.head_metrics`.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import profile_figure
        >>> run = open_run("results/sample")
        >>> figure = profile_figure(run.head_metrics, influences=run.influences)
        >>> len(figure.axes[0].get_xticks())  # one per fifth
        5
    """
    words = Words(**texts)
    shown = shown_plasticity(metrics, plasticity)
    fifths = shown.fifths
    require_columns(metrics, fifths, "the table of heads")
    total = len(metrics)
    metrics = metrics[metrics[list(fifths)].notna().any(axis=1)]
    if metrics.empty:
        raise ConfigError("the table of heads: every fifth is NaN, so there is nothing to draw")
    values = np.column_stack([corrected(metrics, name) for name in fifths])  # (heads, 5)
    x = np.arange(len(fifths))
    estimates = [mean_of_heads(metrics, influences, name, eligible_heads) for name in fifths]
    means = np.array([estimate.value for estimate in estimates])
    halves = np.array([mean_half_width(estimate) for estimate in estimates])
    references = _references(baselines or {}, shown)
    with figure_style():
        figure, axes = new_figure()
        low, q1, q3, high = _quantiles(values)
        wide = axes.fill_between(x, low, high, color=BLUE, alpha=0.14, linewidth=0)
        half = axes.fill_between(x, q1, q3, color=BLUE, alpha=0.32, linewidth=0)
        interval = whiskers(axes, x, means, halves, INK)
        width, dot = (1.0, 2.0) if interval else (1.8, 3.5)  # whiskers can be short
        (line,) = axes.plot(x, means, color=INK, linewidth=width, marker="o", markersize=dot)
        lines = draw_references(axes, references)
        ends = (means - np.nan_to_num(halves), means + np.nan_to_num(halves))
        plasticity_axis(axes, shown.name, low, high, *ends, references_reach(references))
        axes.set_xticks(x, FIFTH_NAMES)
        axes.set_xlabel(f"part of the {parts_of_context(shown)}")
        axes.set_xlim(-0.5, len(fifths) - 0.5)
        labels = ["mean", *_SPREADS, *(one.words for one in references)]
        rows = legend_above(axes, [line, half, wide, *lines], labels)
        reached = texts_by_fifth(None if cells is None else bin_cells(cells), metrics)
        middle = np.asarray(reached.index, np.float64)
        draw_texts(axes, reached, middle - 0.5, middle + 0.5)
        others = _notes(metrics, shown, values, halves, reached, eligible_heads)
        notes = [words.heads(len(values), total), *others]
        told = references_sentence(references, baselines or {})
        caption = _caption(words, metrics, shown, estimates, halves, reached, told)
        title = f"{capitalised(shown.name)}, by fifths"
        words.write(figure, axes, title, notes, caption, rows)
    return figure


def _references(baselines: Baselines, shown: PlasticityColumns) -> list[Reference]:
    """The means of the baselines in every fifth."""
    found = []
    for words, run in baselines.items():
        means = [mean_over_heads(run, name) for name in shown.fifths]
        values = np.array([mean.value for mean in means])  # (5,)
        halves = np.array([mean_half_width(mean) for mean in means])  # (5,)
        found.append(Reference(words, np.arange(len(means), dtype=np.float64), values, halves))
    return known_references(found)


def _quantiles(values: Floats) -> Floats:
    """(4, 5) borders of the bands of each fifth; NaN without values."""
    known = [column[~np.isnan(column)] for column in values.T]
    borders = [np.quantile(part, _BANDS) if len(part) else [np.nan] * 4 for part in known]
    return np.array(borders, np.float64).T


def _notes(
    metrics: pd.DataFrame,
    shown: PlasticityColumns,
    values: Floats,
    halves: Floats,
    reached: pd.Series[float],
    eligible: int | None,
) -> list[str | None]:
    gaps = int(np.isnan(values).any(axis=1).sum())
    return [
        f"{gaps:,} of them lack a value in some fifth" if gaps else None,
        correction_note(metrics, *shown.fifths),
        interval_note("whiskers", halves, eligible),
        texts_note(reached, "fifth"),
        phase_note(shown),
    ]


def _caption(
    words: Words,
    metrics: pd.DataFrame,
    shown: PlasticityColumns,
    estimates: Sequence[MeanEstimate],
    halves: Floats,
    reached: pd.Series[float],
    references: str | None,
) -> Caption:
    known = np.isfinite(halves)
    groups = [estimate.groups for estimate in estimates]
    sentence = interval_sentence(
        "Whiskers are 95 % intervals of the mean,",
        groups,
        complete=bool(known.all()),
        eligible=estimates[0].eligible,
    )
    return words.caption(
        len(metrics),
        f"{capitalised(shown.name)}, by fifths of the {parts_of_context(shown)}: mean over heads, "
        "with bands of the middle 50 % and the middle 90 % of heads.",
        phase_sentence(shown),
        sentence if known.any() else None,
        references,
        texts_sentence(reached, "fifth"),
        correction=correction_note(metrics, *shown.fifths),
        plasticity=shown,
    )
