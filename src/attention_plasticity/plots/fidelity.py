"""How well scores without a query rank keys: one point per key head, for every score."""

from __future__ import annotations

import textwrap
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attention_plasticity.plots.by_role import spread
from attention_plasticity.plots.captions import interval_sentence
from attention_plasticity.plots.intervals import whiskers
from attention_plasticity.plots.style import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    QUIET,
    figure_style,
    label_lines,
    new_figure,
)
from attention_plasticity.plots.words import TextOptions, Words
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.fidelity import LIMITS, QUANTITIES, Means
from attention_plasticity.tables.intervals import half_width
from attention_plasticity.tables.names import FIDELITY_CAUTION, SCORE_WORDS
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

Floats = npt.NDArray[np.float64]

_SOURCE = "the table of fidelity"
_ROW, _AROUND = 0.29, 2.0  # inches; height of a score in a panel, and of the texts around panels
_PANEL = 1.4  # inches; width of a panel
_SHIFT = 0.2  # of a row: scores without ‖v‖ are above, with ‖v‖ below
_SPREAD = 0.13  # of a row, of the points of one score
_LABEL = 20  # letters of the longest name of a score in one line
_WORDS = {
    "spearman": "Spearman correlation",
    "kept_50": "attention kept with 50 % of keys",
    "kept_25": "attention kept with 25 % of keys",
    "kept_10": "attention kept with 10 % of keys",
}
_COLOURS = (BLUE, ORANGE)


def fidelity_figure(
    fidelity: pd.DataFrame, *, means: Means | None = None, **texts: Unpack[TextOptions]
) -> Figure:
    """Draw how well scores without a query rank keys, one point per key head.

    Four panels: the Spearman correlation of a score with the attention that keys receive, and the
    attention kept with 50, 25 and 10 % of the keys. The last two rows are limits. A black mark is
    the mean over key heads; with `means` it has a 95 % interval over texts. A dotted line is a
    random order of keys.

    `fidelity` is the content of head_fidelity.csv, such as `Run.table("fidelity")`.

    Examples:
        >>> import pandas as pd
        >>> from attention_plasticity.plots import fidelity_figure
        >>> rows = [(0, 0, "q_filter", 0, 0.7, 0.7, 0.4, 0.3), (0, 0, "key_norm", 0, *4 * [0.4])]
        >>> names = "layer k_head score value_norm spearman kept_50 kept_25 kept_10".split()
        >>> figure = fidelity_figure(pd.DataFrame(rows, columns=names))
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['length of the key', 'Q-Filter']
    """
    words = Words(**texts)
    require_columns(fidelity, ["layer", "k_head", "score", "value_norm", *QUANTITIES], _SOURCE)
    present = set(fidelity["score"])
    scores = [name for name in SCORE_WORDS if name in present]
    if not scores or not np.isfinite(fidelity[list(QUANTITIES)].to_numpy(np.float64)).any():
        raise ConfigError(f"{_SOURCE}: has no values of known scores")
    heads = len(fidelity[["layer", "k_head"]].drop_duplicates())
    with_values = bool((fidelity["value_norm"] == 1).any())
    with figure_style():
        height = _AROUND + 2 * _ROW * len(scores)
        figure, panels = new_figure(height=height, nrows=2, ncols=2, sharey=True)
        halves: list[float] = []
        for axes, (column, chance) in zip(panels.flat, QUANTITIES.items(), strict=True):
            halves += _draw_panel(axes, fidelity, scores, column, chance, means)
        labels = [_in_lines(SCORE_WORDS[name]) for name in scores]
        panels[0, 0].set_yticks(range(len(scores)), labels)
        panels[0, 0].set_ylim(len(scores) - 0.5, -0.5)
        has_interval = bool(np.isfinite(halves).any())
        mark = f"diamond: mean{' and its 95 % interval over texts' if has_interval else ''}"
        number = count(heads, "key head")
        notes = [
            f"{number} of {words.selection}" if words.selection else number,
            mark,
            "orange: score times length of the value" if with_values else None,
            "dotted: random order of keys",
        ]
        groups = fidelity.reindex(columns=["n_groups"])["n_groups"]
        caption = words.caption(
            heads,
            "Scores that rank keys without a query, one point per key head: Spearman correlation "
            "of the score with the attention that a key receives from later queries, and share of "
            "the attention that remains when 50, 25 or 10 % of the keys of a text are kept. The "
            "last two rows know the queries of the text: the best fixed ranking of its keys, and "
            "the best keys for each query. Points of a row are spread up and down only so that "
            "they can be told apart. Diamonds: mean over key heads. Dotted lines: a random order "
            "of keys.",
            FIDELITY_CAUTION,
            "Orange: the score times the length of the value of a key." if with_values else None,
            interval_sentence("Lines are 95 % intervals of the means,", groups)
            if has_interval
            else None,
            noun="key head",
        )
        words.write(figure, None, "Scores without a query", notes, caption)
    return figure


def _draw_panel(
    axes: Axes,
    fidelity: pd.DataFrame,
    scores: list[str],
    column: str,
    chance: float,
    means: Means | None,
) -> list[float]:
    """Draw one column. Returns the half widths of the means."""
    halves = []
    axes.axvline(chance, color=INK, linewidth=0.8, linestyle=(0, (1, 1.5)))
    for row, score in enumerate(scores):
        own = fidelity[fidelity["score"] == score]
        kinds = sorted(set(own["value_norm"].astype(int)))
        for kind in kinds:
            values = own.loc[own["value_norm"] == kind, column].dropna().to_numpy(np.float64)
            if not len(values):
                continue
            place = row + (0.0 if len(kinds) == 1 else _SHIFT * (2 * kind - 1))
            colour = QUIET if score in LIMITS else _COLOURS[kind]
            axes.scatter(
                values,
                place + spread(values, _SPREAD),
                s=min(9.0, max(3.0, 300.0 / len(values))),
                color=colour,
                alpha=0.6,
                linewidths=0,
            )
            mean, half = float(values.mean()), np.nan
            if means is not None:
                known = means.get((score, kind), {}).get(column)
                if known is not None:
                    mean = known.value
                    half = float(half_width(known.standard_error, known.groups))
            whiskers(axes, [mean], [place], [half], INK, horizontal=True, cap=2.0)
            axes.plot(
                [mean],
                [place],
                marker="D",
                markersize=3.4,
                color=INK,
                markeredgecolor="white",
                markeredgewidth=0.5,
                linestyle="none",
            )
            halves.append(half)
    if scores[-1] in LIMITS:
        first = next(row for row, score in enumerate(scores) if score in LIMITS)
        axes.axhline(first - 0.5, color=QUIET, linewidth=0.5, linestyle=(0, (4, 3)))
    axes.set_xlabel(label_lines(_WORDS[column], _PANEL))
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=FAINT, linewidth=0.4)
    axes.tick_params(axis="y", length=0)
    if column != "spearman":
        axes.set_xlim(-0.02, 1.02)
        axes.set_xticks([0.0, 0.5, 1.0], ["0", "0.5", "1"])
    return halves


def _in_lines(name: str) -> str:
    """A long name in two lines of similar length."""
    return name if len(name) <= _LABEL else textwrap.fill(name, len(name) // 2 + 2)
