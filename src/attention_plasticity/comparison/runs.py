"""The runs of a comparison, and the table of their means: one row per run and layer type.

The heads behind the means of compared runs, and cautions about means over different heads. Names of
runs: shortened for narrow places, and with the type of layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.head_means import MeanEstimate
from attention_plasticity.tables.intervals import HeadColumn, groups_of, head_column
from attention_plasticity.tables.labels import labels_of
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
)
from attention_plasticity.tables.names import clean
from qk_toolkit.formatting import count, format_heads, index_ranges

ALL_LAYERS = "all"
"""`layer_type` of the rows with the means over all heads of a run."""

COMPARED = (*AT_ONE_POSITION.all, *OVER_BUCKETS.all)
"""Columns of the table of heads whose means are compared."""

TABLE_COLUMNS = (
    "run",
    "layer_type",
    "heads",
    "context",
    *COMPARED,
    *(f"{name}_se" for name in COMPARED),
    "n_text_groups",
    *(f"{name}_df" for name in COMPARED),
    "eligible_heads",
)
_CONTEXT_RATIO = 1.1  # of the largest and the smallest context that count as equal
_LONGEST = 60  # characters of a list of heads

Heads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Means:
    """Means over the heads of a run, or of its layers of one type."""

    heads: int
    groups: float  # of texts; NaN if unknown
    columns: dict[str, HeadColumn]  # without columns that the table of heads misses
    eligible: int | None  # heads from which the heads were sampled at random; None: heads are fixed

    @property
    def of(self) -> dict[str, MeanEstimate]:
        """The means by column."""
        return {name: column.mean for name, column in self.columns.items()}


@dataclass(frozen=True)
class ComparedRun:
    """A run and its name in the comparison."""

    label: str
    run: FinishedRun

    @cached_property
    def layers(self) -> dict[str, list[int]]:
        """The layers of each type."""
        return layers_by_type(self.run.layer_types)

    @cached_property
    def parts(self) -> dict[str, FinishedRun]:
        """The run with all layers and, if it has several types of layers, with each type."""
        found = {ALL_LAYERS: self.run}
        if len(self.layers) > 1:
            found |= {name: self.run.select(layer_type=name) for name in self.layers}
        return found

    @cached_property
    def means(self) -> dict[str, Means]:
        """The means over heads of every part."""
        return {name: _means_of_part(part) for name, part in self.parts.items()}

    def means_of(self, layer_type: str) -> Means | None:
        """The means of the layers of one type; None if the run has no such layer."""
        if list(self.layers) == [layer_type]:
            return self.means[ALL_LAYERS]
        return self.means.get(layer_type)


def labelled(runs: Sequence[FinishedRun], labels: Sequence[str] | None = None) -> list[ComparedRun]:
    """The runs with names: as given, or those of their models."""
    return [ComparedRun(*pair) for pair in zip(labels_of(runs, labels), runs, strict=True)]


def compare_runs(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """Heads, context, the means over heads of `COMPARED`, their errors and degrees of freedom.

    There is one row per run, with `layer_type` `all`. A run with several types of layers also has
    a row per type. A column that is missing in the table of a run is NaN.
    """
    rows = [_row(run, name, means) for run in runs for name, means in run.means.items()]
    return pd.DataFrame(rows, columns=list(TABLE_COLUMNS))


def whole_runs(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows with the means over all heads, one per run."""
    if "layer_type" not in compared:
        return compared
    return compared[compared["layer_type"] == ALL_LAYERS].reset_index(drop=True)


def main_of(compared: pd.DataFrame) -> PlasticityColumns:
    """What figures and the first table show: at one position, if every run has it."""
    whole = whole_runs(compared).reindex(columns=[AT_ONE_POSITION.level])
    return AT_ONE_POSITION if bool(whole.notna().to_numpy().all()) else OVER_BUCKETS


def kinds_of(compared: pd.DataFrame) -> tuple[PlasticityColumns, ...]:
    """What tables show, in their order: the main plasticity, then the other if a run has it."""
    main = main_of(compared)
    other = OVER_BUCKETS if main is AT_ONE_POSITION else AT_ONE_POSITION
    known = compared.reindex(columns=[other.level]).notna().to_numpy().any()
    return (main, other) if known else (main,)


def unequal(contexts: Iterable[float]) -> bool:
    """Whether the known contexts differ by more than 10 %."""
    known = [context for context in contexts if not math.isnan(context)]
    return bool(known) and max(known) > _CONTEXT_RATIO * min(known)


def _means_of_part(part: FinishedRun) -> Means:
    metrics = part.head_metrics
    eligible = part.eligible_heads
    found = {
        name: head_column(metrics, part.influences, name, eligible)
        for name in COMPARED
        if name in metrics
    }
    return Means(len(metrics), groups_of(part), found, eligible)


def _row(run: ComparedRun, layer_type: str, means: Means) -> dict[str, Any]:
    row: dict[str, Any] = {"run": run.label, "layer_type": layer_type, "heads": means.heads}
    row |= {"context": run.run.context}
    row |= {name: mean.value for name, mean in means.of.items()}
    row |= {f"{name}_se": mean.standard_error for name, mean in means.of.items()}
    row |= {f"{name}_df": mean.freedom for name, mean in means.of.items()}
    row |= {"eligible_heads": math.nan if means.eligible is None else means.eligible}
    return row | {"n_text_groups": means.groups}


def same_architecture(one: ComparedRun, other: ComparedRun) -> bool:
    """Whether the heads of two runs correspond, as far as the numbers of heads are known."""
    common = one.run.layout.keys() & other.run.layout.keys()
    return all(one.run.layout[name] == other.run.layout[name] for name in common)


def different_heads(run: ComparedRun, first: ComparedRun) -> list[str]:
    """Sentences about differences of means over different heads, with the heads of each mean.

    Runs of different architectures have different heads in any case. A sentence about them is
    needed only if a mean leaves out heads of its model.
    """
    by_heads: dict[tuple[Heads, Heads], list[str]] = {}
    one, other = run.means[ALL_LAYERS].columns, first.means[ALL_LAYERS].columns
    for name in one.keys() & other.keys():
        if not (one[name].heads and other[name].heads):
            continue  # there is no difference
        by_heads.setdefault((one[name].heads, other[name].heads), []).append(name)
    names = [name for name in one if name in other]
    found = []
    for (mine, others), columns in sorted(by_heads.items(), key=lambda item: -len(item[1])):
        same = mine == others and same_architecture(run, first)
        if not same and not (_is_all(run, mine) and _is_all(first, others)):
            of = "" if len(by_heads) == 1 else f"{', '.join(sorted(columns, key=names.index))}: "
            found.append(
                f"{of}{run.label} minus {first.label} is a difference of means over different "
                f"heads: {run.label} {_words(run, mine)}, {first.label} {_words(first, others)}."
            )
    return found


def chosen_heads(run: ComparedRun) -> str | None:
    """The layers and heads that were chosen for a run: `layers 0-3, heads 0`, or `all`.

    None if the settings of the run are not known.
    """
    if not run.run.settings:
        return None
    parts = []
    for name in ("layers", "heads"):
        numbers: Sequence[int] | None = run.run.settings.get(name)
        if isinstance(numbers, list):
            parts.append(f"{name} {index_ranges(numbers)}")
    if run.run.selection is not None:
        parts.append(f"selected {run.run.selection}")
    return ", ".join(parts) or "all"


def _is_all(run: ComparedRun, heads: Heads) -> bool:
    """Whether these are all heads of the model."""
    layers, per_layer = (run.run.layout.get(name, 0) for name in ("num_layers", "num_q_heads"))
    return bool(heads) and len(heads) == layers * per_layer


def _words(run: ComparedRun, heads: Heads) -> str:
    if _is_all(run, heads):
        return f"all {count(len(heads), 'head')}"
    listed = format_heads(heads)
    if len(listed) > _LONGEST:
        listed = f"layers {index_ranges({layer for layer, _ in heads})}"
    return f"{count(len(heads), 'head')}{f' ({listed})' if listed else ''}"


def short_names(names: Sequence[str], limit: int) -> list[str]:
    """Names of at most `limit` characters, with `…` in the middle of long ones.

    Different names stay different: more of the end or of the start is shown until they are. Names
    that differ only in their middle get a number.
    """
    room = limit - 1
    for end in sorted(range(1, room), key=lambda end: abs(end - room // 2)):
        short = [_shortened(name, room - end, end) for name in names]
        if len(set(short)) == len(set(names)):
            return short
    order = {name: str(place) for place, name in enumerate(dict.fromkeys(names), 1)}
    return [
        name if len(name) <= limit else f"{name[: room - len(order[name])]}…{order[name]}"
        for name in names
    ]


def _shortened(name: str, start: int, end: int) -> str:
    return name if len(name) <= start + end + 1 else f"{name[:start]}…{name[len(name) - end :]}"


def full_names(short: dict[str, str]) -> Iterator[str]:
    """`mod…b is model-b`, for every name that is shortened."""
    for name, shown in short.items():
        if name != shown:
            yield f"{shown} is {name}"


def part_words(layer_type: str) -> str:
    """The type of the layers of a row as text; empty for all layers."""
    return "" if layer_type == ALL_LAYERS else clean(type_words(layer_type))
