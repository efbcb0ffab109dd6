"""What figures of several runs say: names, runs in a caption, notes about intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.figures.compose import Words
from attention_plasticity.figures.marks import interval_note
from attention_plasticity.tables.layer_types import type_words
from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

_INTERVALS = (
    "Intervals are 95 % intervals over texts: Student's t with the groups of texts behind a value "
    "minus 1 as degrees of freedom. All heads of a model share their texts; the influences of a "
    "group are averaged over heads first."
)


def model_words(
    title: str,
    shows: str,
    runs: Sequence[NamedRun],
    details: Sequence[str] = (),
    notes: Sequence[str] = (),
    *,
    intervals: bool = True,
) -> Words:
    """Title, notes and caption: what is drawn, the runs, and how errors are made."""
    lines = [shows, "", f"{count(len(runs), 'run')}:", *(f"- {_run_line(run)}" for run in runs)]
    said = [_INTERVALS if intervals else "", *details]
    lines += ["", " ".join(filter(None, said))]
    return Words(title, notes, "\n".join(lines).rstrip() + "\n")


def _run_line(one: NamedRun) -> str:
    """`a: model m, 270 heads in 30 layers, context 8,192 tokens, 12 texts`."""
    layers = sum(map(len, one.layers.values()))
    model = clean(one.run.dump.get("model") or "not recorded")
    heads = f"{count(len(one.run.head_metrics), 'head')} in {count(layers, 'layer')}"
    if len(one.layers) > 1:
        types = (f"{len(found)} {type_words(name)}" for name, found in one.layers.items())
        heads += f" ({', '.join(types)})"
    unknown = math.isnan(one.run.context)
    context = "context not known" if unknown else f"context {one.run.context:,.0f} tokens"
    parts = [f"model {model}", heads, context]
    if texts := one.run.texts.get("count"):
        parts.append(count(int(texts), "text"))
    return f"{one.label}: {', '.join(parts)}"


def half_widths(rows: pd.DataFrame) -> npt.NDArray[np.float64]:
    """(rows,) half widths of the intervals of a summary; NaN if they are not known."""
    return ((rows["high"] - rows["low"]) / 2.0).to_numpy(np.float64)


def interval_line(frame: pd.DataFrame, mark: str) -> str:
    """The note about bands or whiskers of a figure."""
    return interval_note(mark, half_widths(frame)) or "errors are not known"


def require_rows(frame: pd.DataFrame, what: str) -> None:
    """Raise a `ConfigError` if there is nothing to draw."""
    if frame.empty or frame["mean"].isna().all():
        raise ConfigError(f"{what}: no run has a value, so there is nothing to draw")


def short_names(names: Sequence[str], limit: int) -> list[str]:
    """Names of at most `limit` characters, with `…` in the middle of long ones.

    Names that are the same when they are shortened get a number.
    """
    half = (limit - 1) // 2
    short = [name if len(name) <= limit else f"{name[:half]}…{name[-half:]}" for name in names]
    order = {name: f"…{place}" for place, name in enumerate(dict.fromkeys(names), 1)}
    if len(set(short)) == len(order):
        return short
    return [
        name if len(name) <= limit else f"{name[: limit - len(order[name])]}{order[name]}"
        for name in names
    ]
