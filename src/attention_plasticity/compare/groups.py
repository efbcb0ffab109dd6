"""The values of heads in every group of a summary: layers, roles, bands, single heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from attention_plasticity.compare.bands import by_band
from attention_plasticity.compare.lengths import Columns, by_bin, by_distance, by_fifth, by_length
from attention_plasticity.compare.runs import NamedRun
from attention_plasticity.metrics import HEAD, TableKind
from attention_plasticity.roles import NAMES
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import HeadColumn, head_column
from attention_plasticity.tables.layer_types import recorded_layers, type_words
from attention_plasticity.tables.names import clean, head_name
from qk_toolkit.errors import ConfigError
from qk_toolkit.settings import nearest

ALL_HEADS = "all"
"""The group of a mean over all heads of a run."""
DEPTH_PARTS = 10
WITH_ROPE, WITHOUT_ROPE = "RoPE", "NoPE"
_TABLES: tuple[TableKind, ...] = ("head_metrics", "roles", "drift")  # with one row per query head

Head = tuple[int, int]


def value_of(run: FinishedRun, metric: str) -> HeadColumn | None:
    """A metric of all heads of a run; None if the run does not have it."""
    for kind in _TABLES:
        if run.has(kind) and metric in (table := run.table(kind)):
            found = head_column(table, run.influences, metric, run.eligible_heads)
            return found if found.heads else None
    return None


def columns_by(runs: Sequence[NamedRun], by: str | None, metrics: Sequence[str]) -> list[Columns]:
    """The values of the heads of each run, by metric and group."""
    if by is None:
        return [_split(one.run, metrics, lambda run: None) for one in runs]
    if by in _OF_HEADS:
        found = [_split(one.run, metrics, _OF_HEADS[by]) for one in runs]
        return [*map(_of_sampled_types, runs, found)] if by == "layer_type" else found
    if by in _OF_CONTEXT:
        return _OF_CONTEXT[by](runs)
    known = list(DIVISIONS)
    raise ConfigError(f"by: {by!r}: expected one of {', '.join(known)}{nearest(by, known)}")


def _split(
    run: FinishedRun,
    metrics: Iterable[str],
    groups_of: Callable[[FinishedRun], Mapping[str, Sequence[Head]] | None],
) -> Columns:
    """The metrics of a run in each of its groups of heads."""
    groups = groups_of(run)
    found: Columns = {}
    for metric in metrics:
        column = value_of(run, metric)
        if column is None:
            continue
        if groups is None:
            found[metric, ALL_HEADS] = column
            continue
        places = {head: place for place, head in enumerate(column.heads)}
        for group, heads in groups.items():
            own = [places[head] for head in heads if head in places]
            if own:
                found[metric, group] = replace(column.at(own), eligible=None)
    return found


def _of_sampled_types(one: NamedRun, columns: Columns) -> Columns:
    """The columns by types of layers; a random sample of heads is one of each type as well."""
    if one.run.eligible_heads is None:
        return columns
    words = layer_kinds(one.run)
    eligible = {
        words[layers[0]]: one.run.select(layer_type=name).eligible_heads
        for name, layers in one.layers.items()
    }
    return {key: replace(column, eligible=eligible[key[1]]) for key, column in columns.items()}


def _of_layers(run: FinishedRun, kinds: Mapping[int, str]) -> dict[str, list[Head]]:
    """The heads in the layers of each kind."""
    found: dict[str, list[Head]] = {}
    for head in _heads(run):
        if head[0] in kinds:
            found.setdefault(kinds[head[0]], []).append(head)
    return found


def _heads(run: FinishedRun) -> list[Head]:
    table = run.head_metrics[["layer", "q_head"]].to_numpy(np.int64)
    return sorted((layer, head) for layer, head in table.tolist())


def layer_kinds(run: FinishedRun) -> dict[int, str]:
    """The type of every layer in words: `full attention`, `sliding window`."""
    return {layer: clean(type_words(name)) for layer, name in run.layer_types.items()}


def rope_kinds(run: FinishedRun) -> dict[int, str]:
    """`RoPE` or `NoPE` of every layer; without layers of which it is not known."""
    words = {True: WITH_ROPE, False: WITHOUT_ROPE}
    known = {one.layer: one.rope for one in recorded_layers(run.dump) if one.rope is not None}
    return {layer: words[known[layer]] for layer in run.layer_types if layer in known}


def _by_depth(run: FinishedRun) -> dict[str, list[Head]]:
    """`0–10 %` and so on. The number of layers is that of the layout, else from the last layer."""
    heads = _heads(run)
    layers = int(run.layout.get("num_layers") or max(layer for layer, _ in heads) + 1)
    found = {}
    for part, name in enumerate(DEPTHS):
        chosen = layers_of_part(part, DEPTH_PARTS, layers)
        found[name] = [head for head in heads if head[0] in chosen]
    return found


DEPTHS = tuple(
    f"{100 * part // DEPTH_PARTS}–{100 * (part + 1) // DEPTH_PARTS} %"
    for part in range(DEPTH_PARTS)
)


def layers_of_part(part: int, parts: int, layers: int) -> list[int]:
    """The layers whose middle is in a part of the depth: 0 to 2 for the first of 10 parts of 30.

    A model with fewer layers than parts has in each part the layer at the middle of the part. A
    middle at an edge belongs to the deeper part.
    """
    if layers < parts:
        return [(2 * part + 1) * layers // (2 * parts)]
    return [one for one in range(layers) if (2 * one + 1) * parts // (2 * layers) == part]


def _by_role(run: FinishedRun) -> dict[str, list[Head]]:
    """The heads of each likely role; empty if the run has no roles."""
    if not run.has("roles"):
        return {}
    table = run.table("roles").sort_values(HEAD)
    heads = list(zip(table["layer"].tolist(), table["q_head"].tolist(), strict=True))
    likely = table["likely_role"].tolist()
    found = {
        role: [head for head, own in zip(heads, likely, strict=True) if own == role]
        for role in NAMES
    }
    return {role: own for role, own in found.items() if own}


_OF_HEADS: dict[str, Callable[[FinishedRun], Mapping[str, Sequence[Head]]]] = {
    "layer_type": lambda run: _of_layers(run, layer_kinds(run)),
    "rope": lambda run: _of_layers(run, rope_kinds(run)),
    "depth": _by_depth,
    "role": _by_role,
    "head": lambda run: {head_name(*head): [head] for head in _heads(run)},
}
_OF_CONTEXT: dict[str, Callable[[Sequence[NamedRun]], list[Columns]]] = {
    "length": by_length,
    "fifth": by_fifth,
    "bin": by_bin,
    "distance": by_distance,
    "band": by_band,
}
DIVISIONS = (*_OF_HEADS, *_OF_CONTEXT)
"""The values of `by`, besides None."""
METRICS_CHOSEN = (None, *_OF_HEADS)
"""Those that divide heads, for which metrics can be chosen."""
