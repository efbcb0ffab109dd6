"""The one summary of several runs: a tidy table of means over heads, and of their differences.

A mean over heads has the error of its texts: the influences of each group of texts are averaged
over heads first. If heads were sampled at random, their choice adds to the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from attention_plasticity.compare.groups import ALL_HEADS, METRICS_CHOSEN, columns_by, value_of
from attention_plasticity.compare.lengths import Columns
from attention_plasticity.compare.runs import (
    NamedRun,
    Pair,
    can_match,
    minus_first,
    named_runs,
    same_architecture,
)
from attention_plasticity.metrics import HEAD_METRICS, KEY_HEADS
from attention_plasticity.tables.baselines import Level, level_difference, levels
from attention_plasticity.tables.finished_run import AnyRun
from attention_plasticity.tables.head_means import MeanEstimate
from attention_plasticity.tables.intervals import (
    HeadColumn,
    difference_of_means,
    mean_difference,
    mean_half_width,
    mean_numbers,
    recorded_mean,
)
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest

SUMMARY_COLUMNS = (
    *("run", "minus", "by", "group", "metric"),
    *("mean", "se", "low", "high", "df", "heads"),
)


def summary(
    runs: Sequence[AnyRun | NamedRun],
    by: str | None = None,
    metrics: Sequence[str] | None = None,
    pairs: Sequence[Pair] | None = None,
    *,
    labels: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Means over heads of several runs and their differences, one row each.

    `by` divides every run into groups:

    - None: all heads, in the group `all`
    - `layer_type`: full attention, sliding window; `rope`: RoPE, NoPE
    - `depth`: tenths of the layers; `role`: the likely role of a head; `head`: single heads
    - `length`: parts of the context in tokens, `fifth`: fifths of the longest text, `bin`: bins of
      queries. These have RoPE-aligned plasticity, rotary phase, and their drops;
      `ap_aligned_near` is RoPE-aligned plasticity with keys at the same distances everywhere
    - `distance`: RoPE-aligned plasticity by the distance of the keys, in tokens
    - `band`: eighths of the rotary bands, with their shares of the variance of the logit

    `metrics` are columns of the tables of heads, roles and drift; by default those whose means are
    in run.json. `pairs` are the differences between runs; by default every run minus the first.
    Columns: `run`, `minus` (the run that is subtracted; empty: a mean), `by`, `group`, `metric`,
    `mean`, `se` and the 95 % interval `low`, `high` with `df` degrees of freedom, and `heads` (of
    both means together, if they are not over the same heads). A group without a value has no row.
    If a run has two types of layers, their difference is a row in which `minus` is the run itself.

    Examples:
        >>> from attention_plasticity import open_run, summary
        >>> run = open_run("results/sample")
        >>> table = summary([run], by="depth", metrics=["ap_aligned"])
        >>> table[["group", "mean", "heads"]].round(2)
              group  mean  heads
        0    0–10 %  0.51      2
        1   40–50 %  0.54      2
        2  90–100 %  0.46      2
    """
    named = named_runs(runs, labels)
    chosen = minus_first(named) if pairs is None else list(pairs)
    involved = {one.label: one for one in [*named, *(run for pair in chosen for run in pair)]}
    wanted = HEAD_METRICS.averaged if metrics is None else metrics
    known = columns_by(list(involved.values()), by, wanted)
    columns = dict(zip(involved, known, strict=True))
    if metrics is not None and by in METRICS_CHOSEN:
        require_metrics(metrics, named)
    rows = [row for label in involved for row in _means(label, by, columns[label])]
    rows += [row for pair in chosen for row in _differences(pair, by, columns)]
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


def require_metrics(metrics: Sequence[str], runs: Sequence[NamedRun]) -> None:
    """Refuse a metric that no run has."""
    for name in metrics:
        if all(value_of(one.run, name) is None for one in runs):
            known = [metric for metric in HEAD_METRICS.averaged if metric != name]
            hint = nearest(name, known, otherwise=f"; such as {', '.join(known[:6])}")
            raise ConfigError(f"metrics: no run has {name}{hint}")


def difference(one: HeadColumn, other: HeadColumn, pair: Pair) -> MeanEstimate:
    """The mean over heads in one run minus that in the other, with its error.

    On the same texts, the influences of each group of texts are subtracted, so that what the texts
    change in both runs cancels; other texts are independent samples. In two runs of one
    architecture, it is the mean of the differences of the heads that both have. Otherwise, or if
    the runs have other random samples of heads, it is the difference of the means over all heads
    of each run.
    """
    same = _same_heads(one, other, pair)
    return difference_of_means(one, other, paired=pair.paired, same_heads=same)


def _same_heads(one: HeadColumn, other: HeadColumn, pair: Pair) -> bool:
    if one.heads == other.heads:
        return same_architecture(*pair)
    sampled = one.eligible is not None or other.eligible is not None
    return not sampled and can_match(*pair) and bool({*one.heads} & {*other.heads})


def _means(label: str, by: str | None, columns: Columns) -> Iterator[SummaryRow]:
    means = {key: column.mean for key, column in columns.items()}
    for (metric, group), mean in means.items():
        if mean.heads:
            yield _row(Place(label, "", by or "", group, metric), mean)
    if by in ("layer_type", "rope"):
        yield from _between_kinds(label, by, means)


def _between_kinds(
    label: str, by: str, means: Mapping[tuple[str, str], MeanEstimate]
) -> Iterator[SummaryRow]:
    """The difference of the two kinds of layers of a run, for each metric."""
    for metric in dict.fromkeys(name for name, _ in means):
        kinds = sorted(group for name, group in means if name == metric)
        if len(kinds) == 2:
            change = mean_difference(*(means[metric, kind] for kind in kinds), paired=True)
            yield _row(Place(label, label, by, " minus ".join(kinds), metric), change)


def _differences(
    pair: Pair, by: str | None, columns: Mapping[str, Columns]
) -> Iterator[SummaryRow]:
    own, other = columns[pair.run.label], columns[pair.minus.label]
    for (metric, group), column in own.items():
        if (metric, group) in other:
            mean = difference(column, other[metric, group], pair)
            if mean.heads:
                place = Place(pair.run.label, pair.minus.label, by or "", group, metric)
                yield _row(place, mean)


class Place(NamedTuple):
    """What a row of a summary is about: the first columns."""

    run: str
    minus: str
    by: str
    group: str
    metric: str


SummaryRow = tuple[str | float, ...]


def _row(place: Place, mean: MeanEstimate) -> SummaryRow:
    return (*place, *mean_numbers(mean), mean.freedom, mean.heads)


def key_head_summary(runs: Sequence[NamedRun]) -> pd.DataFrame:
    """The same table of the means over the key heads of every run that has their table.

    `by` is `key_head` and `heads` the number of key heads. The errors of a part of the layers are
    not known, and there are no differences.
    """
    rows = []
    for one in runs:
        if not one.run.has("key_heads"):
            continue
        table = one.run.table("key_heads")
        known = one.run.info.get("key_head_means") or {} if one.run.layers is None else {}
        for metric in KEY_HEADS.with_error:
            if metric not in table or table[metric].isna().all():
                continue
            mean = recorded_mean(known, metric)
            value, heads = float(table[metric].mean()), int(table[metric].notna().sum())
            reach = mean_half_width(mean)
            numbers = (value, mean.standard_error, value - reach, value + reach, mean.freedom)
            rows.append((*Place(one.label, "", "key_head", ALL_HEADS, metric), *numbers, heads))
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


def baseline_summary(runs: Sequence[NamedRun]) -> pd.DataFrame:
    """Means over heads of runs that have baselines, of their baselines, and the differences.

    The columns are those of `summary`, and `draws`. The error of a baseline has that between draws.
    """
    rows: list[tuple[object, ...]] = []
    for one in runs:
        for metric, known in levels(one.run, HEAD_METRICS.averaged).items():
            if "" in known and len(known) > 1:
                words = {name: f"{one.label} ({name})" if name else one.label for name in known}
                rows += [_of_level(words[name], "", metric, level) for name, level in known.items()]
                rows += [
                    _of_level(one.label, words[name], metric, level_difference(known[""], level))
                    for name, level in known.items()
                    if name
                ]
    return pd.DataFrame(rows, columns=[*SUMMARY_COLUMNS, "draws"])


def _of_level(run: str, minus: str, metric: str, level: Level) -> tuple[object, ...]:
    ends = (level.value - level.half, level.value + level.half)
    numbers = (level.value, level.standard_error, *ends, level.freedom, level.heads)
    return (run, minus, "", ALL_HEADS, metric, *numbers, len(level.draws) or math.nan)
