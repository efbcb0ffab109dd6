"""Parts that the figures of a comparison share: legend and notes below the axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from attention_plasticity.comparison.cautions import Caution, Concerned
from attention_plasticity.comparison.drawn import Drawn
from attention_plasticity.comparison.names import short_names
from attention_plasticity.plots.intervals import interval_note
from attention_plasticity.plots.style import figure_text, footnote
from qk_toolkit.errors import ConfigError

MARKERS = "osD^vP*X"
ROUND_STEPS = [1, 2, 2.5, 5, 10]  # of ticks
_LONGEST_NAME, _LONGEST_NAME_IN_NOTES = 56, 26  # characters
_LONG_LINE = 4.5  # in a legend, in letters
_LEGEND_LINE, _NOTE_LINE, _LETTER = 0.178, 0.136, 0.066  # inches


def require_values(drawn: Drawn) -> None:
    """Raise a `ConfigError` if there is nothing to draw."""
    if np.isnan(drawn.values).all():
        raise ConfigError("compare: every value is NaN, so there is nothing to draw")


def whisker_notes(drawn: Drawn) -> list[str]:
    """What the whiskers are, and which runs are corrected for bias.

    Runs without errors are not corrected. If all runs are such runs, there are no notes.
    """
    whiskers, plain = interval_note("whiskers", drawn.halves_of_values), drawn.not_corrected
    bias = _named("not corrected for bias", plain, drawn.runs) if plain else "corrected for bias"
    if whiskers is None:
        return [] if len(plain) == len(drawn.runs) else [bias]
    return [bias, whiskers]


def caution_notes(
    cautions: Iterable[Caution], labels: Sequence[str], *concerned: Concerned
) -> list[str]:
    """Cautions in few words, one per kind, with the names of the runs unless it is about all."""
    found: dict[str, list[str]] = {}
    for caution in cautions:
        if caution.short and caution.concerns in concerned:
            names = found.setdefault(caution.short, [])
            names += [label for label in caution.runs if label not in names]
    return [_named(text, names, labels) for text, names in found.items()]


def _named(text: str, names: Sequence[str], labels: Sequence[str]) -> str:
    """A note with the names of its runs, unless it is about all of them."""
    if len(names) == len(labels):
        return text
    short = dict(zip(labels, short_names(labels, _LONGEST_NAME_IN_NOTES), strict=True))
    return f"{text}: {', '.join(short[name] for name in names)}"


def legend_names(names: Sequence[str], room: int = 0) -> list[str]:
    """Names for a legend: different, and of bounded length, with `room` for more characters."""
    return [figure_text(name) for name in short_names(names, _LONGEST_NAME - room)]


def notes_and_legend(
    figure: Figure,
    notes: Sequence[str],
    handles: Sequence[Any] = (),
    *,
    long_lines: bool = False,
) -> None:
    """Put a legend and notes below the axes, and make the figure higher by their lines.

    With `long_lines`, the lines in the legend are long enough to show different gaps.
    """
    lengths: Any = {"handlelength": _LONG_LINE, "numpoints": 2} if long_lines else {}
    width = figure.get_figwidth()
    shown = footnote(figure, *(note.replace("$", r"\$") for note in notes))
    room = _NOTE_LINE * shown + 0.06 if shown else 0.0
    longest = max((len(handle.get_label()) for handle in handles), default=0)
    handle = 0.8 if long_lines else 0.5  # inches
    columns = max(1, int(width / (handle + _LETTER * longest)))
    lines = math.ceil(len(handles) / columns)
    legend = _LEGEND_LINE * lines + 0.06 if handles else 0.0
    height = figure.get_figheight() + legend + room
    figure.set_figheight(height)
    engine = figure.get_layout_engine()
    if handles and isinstance(engine, ConstrainedLayoutEngine):
        share = legend / height  # room for the notes is kept by the engine
        engine.set(rect=(0.0, share, 1.0, 1.0 - share))
        place: Any = {"loc": "lower left", "bbox_to_anchor": (0.0, room / height), **lengths}
        figure.legend(
            handles=list(handles), columnspacing=1.2, ncols=columns, borderaxespad=0.2, **place
        )
