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
_MOST = 0.5  # share of queries from which they are called "most queries"
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
_PLACES = {
    "self_mass": "its own token",
    "previous_mass": "the previous token",
    "local_mass": "tokens 2 to 7 before the query",
    "far_mass": "tokens {far} or more before the query, without the first four tokens of the text",
    "first_mass": "the first token of the text",
}
"""Where the attention of a column goes, after "on"."""
_OF_ROLE = {name: f"{name}_mass" for name in ("previous", "self", "local", "far")}
_LABELS = {metric.column: metric.label for metric in TABLE.columns}
_RESTS = "put more than 30 % of their attention on the first token"


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
    distant_from: int | None,
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
        yield head_sentence(role, likely, scores, aligned, phase, distant_from, size, thresholds)


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
    distant_from: int | None,
    bin_size: int | None,
    thresholds: Mapping[str, float],
) -> str:
    """What a head does: its role, where its attention goes, and what decides the order of keys.

    `aligned` is RoPE-aligned plasticity and `phase` the rotary phase; NaN if they are not known.
    `thresholds` are those of the columns that decide about roles.
    """
    parts = [
        _role_words(role, likely, scores, thresholds),
        _attention_words(likely, scores, distant_from),
        _sink_words(likely, scores),
        order_words(aligned, phase, bin_size),
    ]
    return " ".join(filter(None, parts))


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


def _attention_words(likely: str, scores: Scores, distant_from: int | None) -> str:
    if likely in ("induction", "duplicate"):
        return _matching_words(likely, scores)
    if likely == "sink":
        return f"{percent(scores['sink_rate'])} of the queries {_RESTS}."
    if likely == MIXED:
        known = {name: scores[name] for name in _PLACES if scores[name].known}
        if not known:
            return ""
        most = max(known, key=lambda name: known[name].value)
        share = percent(known[most])
        return f"The largest share of its attention, {share}, is on {_place(most, distant_from)}."
    column = _OF_ROLE[likely]
    share, place = percent(scores[column]), _place(column, distant_from)
    return f"It puts {share} of its attention on {place}."


def _matching_words(likely: str, scores: Scores) -> str:
    """The score that decides about induction and duplicate tokens: on repeated tokens, if known."""
    repeated = scores[f"repeated_{likely}"]
    if repeated.known:
        target = "the token after the first occurrence of its token"
        if likely == "duplicate":
            target = "the first occurrence of its token"
        return (
            "On random tokens that come twice, a query of the second half puts "
            f"{percent(repeated)} of its attention on {target}."
        )
    target = "tokens that followed it" if likely == "induction" else "its earlier occurrences"
    return (
        f"If the token of the query came before, {percent(scores[f'{likely}_mass'])} of the "
        f"attention is on {target} ({percent(scores[f'{likely}_chance'])} with equal weights)."
    )


def _sink_words(likely: str, scores: Scores) -> str:
    rate = scores["sink_rate"]
    if likely == "sink" or not rate.known or rate.value < _MOST:
        return ""
    return f"Most queries ({percent(rate)}) {_RESTS}."


def _place(column: str, distant_from: int | None) -> str:
    far = "distant_from" if distant_from is None else f"{distant_from:,}"
    return _PLACES[column].format(far=far)


def percent(share: Measured) -> str:
    """`71.5 ± 2.1 %`; `71 %` if the interval is not known."""
    value, half = 100 * share.value, 100 * share.half
    return f"{with_half(value, half) if math.isfinite(half) else f'{value:.0f}'} %"


def _number(measured: Measured) -> str:
    known = math.isfinite(measured.half)
    text = with_half(*measured) if known else f"{round(measured.value, 2) + 0.0:.2f}"
    return text.replace("-", "−")
