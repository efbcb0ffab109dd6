"""Texts that need judgement: what a head does, from its numbers, and why a run has no words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from attention_plasticity.metrics import ALIGNED, HEAD, PHASE
from attention_plasticity.metrics import ROLES as TABLE
from attention_plasticity.roles import (
    MIXED,
    NO_ERRORS,
    REPEATED_DECIDE,
    ROLES,
    UNSURE,
    repeated_decide,
)
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_roles import SCORES
from attention_plasticity.tables.intervals import head_half_width, row_half_width
from qk_toolkit.formatting import with_half

FIXED_ORDER = 0.25
"""Plasticity over a bin below which two keys mostly keep their order: for a plasticity of 0.25,
93 % of the queries prefer the same key."""
_NAMES = {
    "induction": "induction head",
    "duplicate": "duplicate-token head",
    "previous": "previous-token head",
    "self": "own-token head",
    "local": "local head",
    "far": "far head",
    "sink": "sink head",
    MIXED: "mixed head",
}
_LABELS = {metric.column: metric.label for metric in TABLE.columns}


class Measured(NamedTuple):
    """A value, and half the width of its 95 % interval; NaN if it is not known."""

    value: float
    half: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return math.isfinite(self.value)


Scores = Mapping[str, Measured]


def sentences(
    run: FinishedRun,
    roles: pd.DataFrame,
    heads: pd.DataFrame,
    thresholds: Mapping[str, float],
) -> Iterator[str]:
    """The text of every head of the table of roles."""
    columns = {metric.column: _measured(roles, metric.column) for metric in SCORES}
    of_heads = {name: _by_head(run, heads, name) for name in (ALIGNED, PHASE)}
    labels = roles[[*HEAD, "role", "likely_role"]].itertuples(index=False, name=None)
    for row, (layer, head, role, likely) in enumerate(labels):
        scores = {name: column[row] for name, column in columns.items()}
        aligned, phase = (
            of_heads[name].get((layer, head), Measured(math.nan)) for name in (ALIGNED, PHASE)
        )
        size = run.info.get("bin_size")
        yield head_sentence(role, likely, scores, aligned, phase, size, thresholds)


def _measured(table: pd.DataFrame, name: str) -> list[Measured]:
    values = table[name].to_numpy(np.float64).tolist()
    return [*map(Measured, values, row_half_width(table, name).tolist())]


def _by_head(run: FinishedRun, heads: pd.DataFrame, name: str) -> dict[tuple[int, int], Measured]:
    """A metric of every head, by layer and head."""
    halves = head_half_width(heads, name, run.influences)
    rows = zip(heads["layer"], heads["q_head"], heads[name], halves, strict=True)
    return {(layer, head): Measured(float(value), float(half)) for layer, head, value, half in rows}


def why_no_words(run: FinishedRun) -> str:
    """Why the run has no words; empty if it has them."""
    if run.has("words"):
        return ""
    capture = (run.dump.get("capture") or {}).get("capture")
    if isinstance(capture, dict) and capture.get("tokens") is False:
        return "the capture left out tokens (capture.tokens: false)"
    return "the dump has no tokens"


def head_sentence(
    role: str,
    likely: str,
    scores: Scores,
    aligned: Measured,
    phase: Measured,
    bin_size: int | None,
    thresholds: Mapping[str, float],
) -> str:
    """What a head does: its role, and what decides the order of keys.

    `aligned` is RoPE-aligned plasticity and `phase` the rotary phase; NaN if they are not known.
    `thresholds` are those of the columns that decide about roles.
    """
    words = _role_words(role, likely, scores, thresholds)
    return f"{words} {order_words(aligned, phase, bin_size)}".strip()


def order_words(aligned: Measured, phase: Measured, bin_size: int | None) -> str:
    """Whether distance or the content of a query changes the order of two keys; may be empty.

    Their sum is plasticity over a bin. If it is below `FIXED_ORDER`, neither changes the order of
    keys much. Otherwise the larger one changes it more, unless the 95 % intervals overlap.
    """
    if not (aligned.known and phase.known):
        return ""
    numbers = f"(rotary phase {_number(phase)}, RoPE-aligned plasticity {_number(aligned)})"
    inside = f"Inside a bin of {bin_size:,} tokens" if bin_size else "Inside a bin"
    if aligned.value + phase.value < FIXED_ORDER:
        return f"{inside}, two keys mostly keep their order, whatever the query is {numbers}."
    halves = [one.half for one in (aligned, phase) if math.isfinite(one.half)]
    if abs(phase.value - aligned.value) <= sum(halves):
        return (
            f"{inside}, distance and the content of the query change the order of two keys about "
            f"equally {numbers}."
        )
    if phase.value > aligned.value:
        return (
            f"{inside}, distance changes the order of two keys more than the content of the query "
            f"does {numbers}."
        )
    return (
        f"{inside}, the content of the query changes the order of two keys more than distance does "
        f"{numbers}."
    )


def doubtful_scores(likely: str, scores: Scores, thresholds: Mapping[str, float]) -> list[str]:
    """Columns that leave open whether a head has the likely role or one before it.

    Their 95 % interval contains the threshold, or is not known.
    """
    found = []
    for role in ROLES:
        column = role.column
        if role.repeated_column is not None and scores[role.repeated_column].known:
            column = role.repeated_column
        value, half = scores[column]
        if not math.isnan(value) and not abs(value - thresholds[column]) > half:
            found.append(column)
        if role.name == likely:
            break
    return found


def _role_words(role: str, likely: str, scores: Scores, thresholds: Mapping[str, float]) -> str:
    name = _NAMES[likely]
    if role == UNSURE:
        probably = f"likely {'an' if name[0] in 'aeiou' else 'a'} {name}"
        doubtful = doubtful_scores(likely, scores, thresholds)
        if any(math.isnan(scores[column].half) for column in doubtful):
            return f"{_sentence(NO_ERRORS)}; {probably}."
        labels = [f"“{_LABELS[column]}”" for column in doubtful]
        reason = f"the 95 % interval of {' and of '.join(labels)} contains its threshold"
        if repeated_decide({column: score.value for column, score in scores.items()}, [likely]):
            return f"{_sentence(REPEATED_DECIDE)}; {probably}{f', and {reason}' if labels else ''}."
        return f"Unsure, {probably}: {reason if labels else 'an interval contains a threshold'}."
    if likely == MIXED:
        return "Mixed head: no score reaches its threshold."
    return f"{_sentence(name)}."


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _number(measured: Measured) -> str:
    known = math.isfinite(measured.half)
    text = with_half(*measured) if known else f"{round(measured.value, 2) + 0.0:.2f}"
    return text.replace("-", "−")
