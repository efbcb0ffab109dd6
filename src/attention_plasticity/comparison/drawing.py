"""The figures of a comparison by name, and their captions."""

from __future__ import annotations

from matplotlib.figure import Figure

from attention_plasticity.comparison.captions import (
    profiles_caption,
    scores_caption,
    trajectory_caption,
)
from attention_plasticity.comparison.data import ComparisonData
from attention_plasticity.comparison.figures import profiles_figure, trajectory_figure
from attention_plasticity.comparison.scores_figure import scores_figure
from attention_plasticity.plots.captions import set_caption
from qk_toolkit.errors import ConfigError

KINDS = ("profiles", "trajectory", "scores")


def draw(data: ComparisonData, kind: str) -> Figure:
    """Draw one of `KINDS`. The figure keeps its caption."""
    _require_kind(data, kind)
    figure = _figure(data, kind)
    set_caption(figure, caption(data, kind))
    return figure


def _figure(data: ComparisonData, kind: str) -> Figure:
    if data.scores is not None and kind == "scores":
        return scores_figure(data.table, data.scores, data.relations, data.cautions)
    if kind == "trajectory":
        return trajectory_figure(data.table, data.cautions)
    return profiles_figure(data.table, data.cautions)


def caption(data: ComparisonData, kind: str) -> str:
    """The caption of one of `KINDS`."""
    _require_kind(data, kind)
    captions = {
        "profiles": profiles_caption,
        "trajectory": trajectory_caption,
        "scores": scores_caption,
    }
    return captions[kind](data)


def _require_kind(data: ComparisonData, kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"kind: {kind!r}: unknown figure; choose {', '.join(KINDS)}")
    if kind == "scores" and data.scores is None:
        raise ConfigError("kind: 'scores' draws scores; compare the runs with scores")
