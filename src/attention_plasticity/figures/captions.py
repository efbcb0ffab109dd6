"""Captions of figures as plain text for a paper, and the words that figures share.

A caption says what is drawn, of how many heads and texts, how errors are made, and how the values
were measured. It is kept beside the matplotlib figure, so that `save_figure` can write it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.figures.marks import interval_note
from attention_plasticity.metrics import ALIGNED_COUNTED
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity,
)
from attention_plasticity.tables.names import PAIR_WORDS, clean, pair_words
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count, index_ranges

_CAPTIONS: WeakKeyDictionary[Figure, str] = WeakKeyDictionary()


@dataclass(frozen=True)
class Words:
    """The texts of a figure. Empty text is left out."""

    title: str = ""
    notes: Sequence[str | None] = ()
    caption: str = ""


def set_caption(figure: Figure, caption: str) -> None:
    """Keep the caption of a figure."""
    _CAPTIONS[figure] = caption


def caption_of(figure: Figure) -> str | None:
    """The caption of a figure; None if it has none.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.figures import caption_of
        >>> "6 query heads" in caption_of(open_run("results/sample").plot("map"))
        True
    """
    return _CAPTIONS.get(figure)


def caption_text(
    shows: str,
    heads: str,
    details: Iterable[str | None],
    run: FinishedRun,
    model: str,
    *,
    shown: PlasticityColumns | None = None,
    groups: npt.ArrayLike | None = None,
) -> str:
    """What is drawn; heads, texts and context; details; intervals; how plasticity was measured.

    `heads` is their number in words, such as `9 query heads`, and `model` the name of the model.
    `shown` is the plasticity that the figure shows, and `groups` are the numbers of groups of texts
    behind its intervals; None: it has none.
    """
    of = f" of {clean(model)}" if model else ""
    sample = [f"{heads}{of}", *filter(None, [run.selection]), *_sample(run)]
    sentences = [shows, "; ".join(sample) + ".", *filter(None, details)]
    if groups is not None:
        sentences.append(_intervals(groups, run.eligible_heads))
    if shown is not None:
        sentences.append(phase_sentence(shown))
        sentences += _without_value(run, shown)
        if measured := list(_settings(run, shown)):
            sentences.append("; ".join(measured) + ".")
    return " ".join(sentences)


def _intervals(groups: npt.ArrayLike, eligible: int | None) -> str:
    """How the 95 % intervals are made.

    `eligible` is the number of heads from which the heads were sampled at random; None: fixed.
    """
    numbers = np.asarray(groups, np.float64)
    known, made = numbers[numbers > 0].tolist(), "Student's t"  # false for NaN
    if known:
        made = f"{range_words(known)} groups of texts, Student's t"
    sampled = ""
    if eligible is not None:
        sampled = (
            f"; those of a mean also over heads, which are a random sample of {eligible:,} heads"
        )
    return f"Intervals come from the variation over texts ({made}){sampled}."


def capitalised(text: str) -> str:
    """The text with a first capital letter."""
    return text[:1].upper() + text[1:]


def plasticity_of(metric: str) -> PlasticityColumns | None:
    """Which plasticity a column is; None for another column."""
    if metric in (*AT_ONE_POSITION.all, ALIGNED_COUNTED):
        return AT_ONE_POSITION
    return OVER_BUCKETS if metric == OVER_BUCKETS.level else None


def phase_sentence(shown: PlasticityColumns) -> str:
    """Whether the rotation of RoPE counts."""
    if shown is OVER_BUCKETS:
        return "Queries are compared as captured, so rotary phase counts."
    return "Queries are de-rotated to one position of their bin, so rotary phase does not count."


def range_words(values: Sequence[float], form: str = ",.0f") -> str:
    """`12`, or `3 to 12`."""
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def rank_correlation(x: Any, y: Any) -> str | None:
    """Spearman's correlation in words; None if there is none."""
    one, other = pd.Series(np.asarray(x, np.float64)), pd.Series(np.asarray(y, np.float64))
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    rho = round(one.corr(other, method="spearman"), 2) + 0.0  # no -0.00
    return f"Spearman's ρ {rho:.2f}".replace("-", "−")


def _without_value(run: FinishedRun, shown: PlasticityColumns) -> Iterable[str]:
    """How many heads have no RoPE-aligned plasticity, in a run where others have it."""
    if not run.has("head_metrics"):
        return
    metrics = run.head_metrics
    known = main_plasticity(run) is AT_ONE_POSITION
    missing = int(metrics[AT_ONE_POSITION.level].isna().sum()) if known else 0
    if shown is OVER_BUCKETS and not known:
        yield f"The run has no {AT_ONE_POSITION.name}."
    if shown is AT_ONE_POSITION and missing:
        has = "has" if missing == 1 else "have"
        yield f"{count(missing, 'further head')} {has} no {AT_ONE_POSITION.name}."


def _sample(run: FinishedRun) -> Iterable[str]:
    config = run.settings
    number = run.texts.get("count") or run.dump.get("num_examples")
    if isinstance(number, int):
        yield count(number, "text")
    if config.get("single_example") is True:
        yield "all rows of a head as one sequence"
    if not run.has("head_metrics"):
        return
    if not math.isnan(run.context):
        yield f"context of {run.context:,.0f} tokens"
    groups = layers_by_type(run.layer_types)
    if len(groups) > 1:
        for name, layers in groups.items():
            yield f"layers {index_ranges(layers)}: {type_words(name)}"


def _settings(run: FinishedRun, shown: PlasticityColumns) -> Iterable[str]:
    config: Mapping[str, Any] = run.settings
    in_bins = shown is AT_ONE_POSITION
    pairs, size = config.get("pair_sampling"), run.info.get("bin_size")
    if pairs in PAIR_WORDS:
        number = config.get("num_pairs_per_bin" if in_bins else "num_pairs_per_bucket")
        drawn = "per bin of queries" if in_bins else "per bucket of keys"
        how_many = f", {number:,} {drawn}" if isinstance(number, int) else ""
        yield f"Key pairs: {pair_words(pairs, in_bins)}{how_many}"
    if in_bins and isinstance(size, int):
        yield f"bins of {size:,} tokens"
    if config.get("seed") is not None:
        yield f"seed {config['seed']}"


_RUNS_INTERVALS = (
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
    said = [_RUNS_INTERVALS if intervals else "", *details]
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
