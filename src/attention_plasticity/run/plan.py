"""The plan of a run: its heads, the pairing of query and key heads, and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from attention_plasticity.config import RunnerConfig
from attention_plasticity.read.layout import (
    MOST_BUCKETS,
    HeadLayout,
    head_layout,
    require_size,
)
from qk_dump.checks import rules_of
from qk_dump.head_counts import count_buckets, count_rows, vector_width
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_toolkit.errors import ConfigError, DumpError, ToolkitError
from qk_toolkit.formatting import count, format_heads, index_ranges


@dataclass(frozen=True)
class Group:
    """A key head and query heads of it. A worker computes one group at a time."""

    layer: int
    k_head: int
    q_heads: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The heads of a run."""

    layout: HeadLayout
    groups: tuple[Group, ...]
    not_captured: tuple[tuple[int, int], ...]  # selected (layer, q_head) that are not in the dump
    excluded_layers: tuple[int, ...] = ()  # layers of the dump at or above num_layers
    lost: tuple[str, ...] = ()  # folders of heads that only dump.json has

    @cached_property
    def heads(self) -> list[tuple[int, int]]:
        """(layer, q_head) of every head to analyse, sorted."""
        return [(layer, q_head) for layer, q_head, _ in self.triples]

    @cached_property
    def triples(self) -> list[tuple[int, int, int]]:
        """(layer, q_head, k_head) of every head to analyse."""
        return [(g.layer, q_head, g.k_head) for g in self.groups for q_head in g.q_heads]

    @property
    def notes(self) -> list[str]:
        """Messages for the user before the run."""
        notes = [f"layout: {self.layout}"] if self.layout.guessed else []
        if self.excluded_layers:
            layers = index_ranges(self.excluded_layers)
            notes.append(
                f"layers {layers} of the dump are left out: num_layers is {self.layout.num_layers}"
            )
        if self.lost:
            notes.append(
                f"{count(len(self.lost), 'head')} of dump.json "
                f"{'is' if len(self.lost) == 1 else 'are'} not in the dump, the first: "
                f"{self.lost[0]}. Copy or fetch the whole dump, if this is not intended"
            )
        return notes


@dataclass(frozen=True)
class Estimate:
    """Size of the input, read from the Parquet footers."""

    rows: int
    rows_used: int
    problems: tuple[str, ...]  # errors that will make heads fail


def make_plan(dump: Dump, config: RunnerConfig) -> Plan:
    """Pair query heads with key heads. Raises if the config contradicts the dump."""
    layout = head_layout(dump, config)
    layers = _selected(config.layers, layout.num_layers, "layers")
    heads = _selected(config.heads, layout.num_q_heads, "heads")
    plan = _plan(dump, layout, layers, heads)
    if not plan.groups:
        raise ConfigError(
            f"{dump.path}: none of the selected query heads is in the dump. "
            f"The dump contains {format_heads(dump.query_heads)}."
        )
    for layer in sorted({group.layer for group in plan.groups}):
        rules_of(dump, HeadId(layer, 0, "q"))  # raises if dump.json contradicts itself
    return plan


def whole_plan(dump: Dump, layout: HeadLayout) -> Plan:
    """The plan of all heads of a dump, of which a command may compute some."""
    return _plan(dump, layout, range(layout.num_layers), range(layout.num_q_heads))


def _plan(dump: Dump, layout: HeadLayout, layers: Iterable[int], heads: Sequence[int]) -> Plan:
    captured = set(dump.query_heads)
    wanted = [(layer, head) for layer in layers for head in heads]
    found = [
        (layer, layout.key_head_of(head), head)
        for layer, head in wanted
        if (layer, head) in captured
    ]
    groups = tuple(
        Group(layer, k_head, tuple(q_head for _, _, q_head in members))
        for (layer, k_head), members in groupby(found, key=lambda item: item[:2])
    )
    not_captured = tuple(head for head in wanted if head not in captured)
    excluded = sorted({layer for layer, _ in captured if layer >= layout.num_layers})
    return Plan(layout, groups, not_captured, tuple(excluded), tuple(dump.lost_heads))


def estimate(dump: Dump, plan: Plan, config: RunnerConfig) -> Estimate:
    """Rows to read, and what will fail, from the Parquet footers and the bucket column."""
    problems: list[str] = []
    rows, used = 0, 0
    for group in plan.groups:
        heads = [HeadId(group.layer, group.k_head, "k")]
        heads += [HeadId(group.layer, q_head, "q") for q_head in group.q_heads]
        for head in heads:
            try:
                files = dump.require_files(head)
                found = count_rows(files)
                rules_of(dump, head).check_number(found, files)
                if not found:
                    raise DumpError(f"{files[0]}: holds no rows")
                width, buckets = vector_width(files), count_buckets(files, MOST_BUCKETS)
                require_size(head, width, buckets, config, dump.folders[head])
            except ToolkitError as error:
                problems.append(str(error))
                continue
            rows += found
            used += min(found, config.max_tokens_per_head)
    return Estimate(rows, used, tuple(problems))


def _selected(chosen: list[int] | None, size: int, name: str) -> list[int]:
    if chosen is None:
        return list(range(size))
    unknown = [index for index in chosen if index >= size]
    if unknown or not chosen:
        raise ConfigError(
            f"{name}: expected numbers from 0-{size - 1}, got {index_ranges(unknown) or 'none'}"
        )
    return chosen
