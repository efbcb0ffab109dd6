"""The queries of a dump whose statistics are exported, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attention_plasticity.export.heads import (
    Filled,
    Head,
    entries,
    layout_of_dump,
    refuse_or_fill,
)
from attention_plasticity.export.settings import Missing
from attention_plasticity.read.layer import (
    SELECTIVE,
    LayerRotation,
    before_rope,
    in_attention,
    rotation_of,
    with_rotary_factor,
)
from attention_plasticity.read.layout import HeadLayout
from attention_plasticity.read.rows import token_weights, why_no_weights
from attention_plasticity.read.texts import DumpTexts, texts_of_dump
from qk_dump.checks import rules_of
from qk_dump.heads import HeadId
from qk_dump.layers import RotaryRecord
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_dump.reader import HeadRows, read_head
from qk_toolkit.arrays import Array, Ints, Vectors
from qk_toolkit.errors import ConfigError, DumpError, HeadError
from qk_toolkit.formatting import format_heads, index_ranges
from qk_toolkit.watcher import Watcher

SEED = 0  # of the rows that are drawn from a large head
MEAN_RULE = "a query head that was not captured has the mean of the captured heads of its layer"

_FEWEST = 2  # a covariance needs two queries


@dataclass(frozen=True)
class HeadQueries:
    """Queries of one head, with their weights and groups of texts."""

    head: HeadId
    rows: HeadRows
    rotation: LayerRotation
    weight: Array  # (n,) tokens that each query stands for
    group: Ints | None  # (n,) group of the text of every query; None: not known

    @property
    def width(self) -> int:
        """Dimensions of a query."""
        return self.rows.width

    @cached_property
    def before_rope(self) -> Vectors:
        """(n, d) queries that enter the rotary embedding, so without its factor on cos and sin."""
        rotation = self._known_rotation()
        if rotation.pre_rope:
            return self.rows.vectors
        vectors = before_rope(self.rows.vectors, self.rows.position, rotation)
        assert vectors is not None
        if rotation.record is None:
            return vectors
        return with_rotary_factor(vectors, rotation.record, 1.0 / rotation.record.scaling)

    @cached_property
    def after_rope(self) -> Vectors:
        """(n, d) queries as they enter the attention, with the factor on cos and sin."""
        return in_attention(self.rows.vectors, self.rows.position, self._known_rotation())

    def _known_rotation(self) -> LayerRotation:
        if self.rotation.problem is not None:
            raise ConfigError(f"{self.head.folder}: {self.rotation.problem}")
        return self.rotation

    def entry(self, errors: dict[str, float]) -> dict[str, Any]:
        """Rows and errors of the head for `PROVENANCE.json`; null: not known."""
        facts = {"layer": self.head.layer, "head": self.head.head, "rows": len(self.rows)}
        return entries([{**facts, **errors}])[0]


@dataclass(frozen=True)
class ExportSource:
    """A dump whose heads can be exported."""

    dump: Dump
    layout: HeadLayout
    texts: DumpTexts
    filled: Filled  # query heads that were not captured
    max_rows: int
    watcher: Watcher

    @classmethod
    def of(cls, dump: Dump, missing: Missing, max_rows: int, watcher: Watcher) -> ExportSource:
        """The heads of a dump. Raises a `ConfigError` if the file could not be complete."""
        layout = layout_of_dump(dump)
        layers = range(layout.num_layers)
        _refuse_layers(dump, layers)
        every = [(layer, head) for layer in layers for head in range(layout.num_q_heads)]
        captured = set(dump.query_heads)
        absent = [head for head in every if head not in captured]
        filled = refuse_or_fill(
            dump.path,
            absent,
            f"query heads that were not captured ({len(absent):,} of {len(every):,}): "
            f"{format_heads(absent)}",
            MEAN_RULE,
            remedy="A file needs every head: capture the others",
            missing=missing,
            others=bool(captured),
            note=watcher.note,
        )
        if empty := set(layers) - {layer for layer, _ in captured}:
            raise ConfigError(
                f"{dump.path}: no query head of layers {index_ranges(empty)} was captured, so "
                "there is no mean to fill them with. Capture these layers"
            )
        why = why_no_weights(dump.manifest)
        if why is not None:
            watcher.note(f"{dump.path}: all rows have the weight 1: {why}")
        return cls(dump, layout, texts_of_dump(dump, layers), filled, max_rows, watcher)

    @property
    def manifest(self) -> DumpManifest:
        """The content of dump.json."""
        assert self.dump.manifest is not None
        return self.dump.manifest

    @property
    def num_texts(self) -> int:
        """Number of texts; 0 if it is not known."""
        return self.texts.count or self.manifest.num_examples or 0

    def rotations(self) -> list[LayerRotation]:
        """How RoPE turns the vectors of every layer; all of them must be known."""
        found = [rotation_of(self.dump, layer) for layer in range(self.layout.num_layers)]
        for layer, rotation in enumerate(found):
            if rotation.problem is not None:
                raise ConfigError(f"{self.dump.path}: layer {layer}: {rotation.problem}")
        return found

    def records(self, file: str) -> list[RotaryRecord]:
        """The rotary record of every layer, for a file that describes queries before RoPE."""
        records = [rotation.record for rotation in self.rotations()]
        without = [layer for layer, record in enumerate(records) if record is None]
        if without:
            raise ConfigError(
                f"{self.dump.path}: layers {index_ranges(without)} have no rotary embedding "
                f"(NoPE). {file} has queries that the tool turns by RoPE in every layer, so it "
                "would be wrong there"
            )
        return [record for record in records if record is not None]

    def queries(self, *, first: int = 0) -> Iterator[tuple[Head, HeadQueries]]:
        """The queries of every captured head, one after the other.

        Queries at positions below `first` are left out. All heads must have one width.
        """
        heads = [head for head in self.dump.query_heads if head[0] < self.layout.num_layers]
        width: tuple[int, str] | None = None
        self.watcher.start("heads", len(heads))
        try:
            for head in heads:
                read = self._read(HeadId(*head, "q"), first)
                width = width or (read.width, read.head.folder)
                if read.width != width[0]:
                    raise DumpError(
                        f"{self.dump.path}: {read.head.folder} has vectors of {read.width} "
                        f"dimensions, {width[1]} of {width[0]}. The file has one width for all "
                        "heads"
                    )
                yield head, read
                self.watcher.advance()
        finally:
            self.watcher.stop()

    def _read(self, head: HeadId, first: int) -> HeadQueries:
        rows = read_head(
            self.dump.require_files(head),
            max_rows=self.max_rows,
            seed=SEED,
            rules=rules_of(self.dump, head),
        )
        if rows.example_id is not None:
            self.texts.require(rows.example_id, rows.position, self.dump.folders[head])
        weight = token_weights(self.dump, "q", rows)
        if first:
            kept = np.flatnonzero(rows.position >= first)
            rows, weight = rows[kept], weight[kept]
        if len(rows) < _FEWEST:
            where = f" at position {first} or later" if first else ""
            raise HeadError(
                f"{self.dump.folders[head]}: has {len(rows)} queries{where}; {_FEWEST} or more are "
                "needed. Capture more tokens."
            )
        group = None if rows.example_id is None else self.texts.group_of(rows.example_id)
        rotation = rotation_of(self.dump, head.layer).for_width(rows.width)
        return HeadQueries(head, rows, rotation, weight, group)

    def table(self, values: dict[Head, Array]) -> Array:
        """(layers, query heads, …) from the arrays of captured heads; others by the rule."""
        shape = next(iter(values.values())).shape
        table = np.zeros((self.layout.num_layers, self.layout.num_q_heads, *shape))
        for (layer, head), value in values.items():
            table[layer, head] = value
        for layer, head in self.filled.heads:
            known = [value for (of, _), value in values.items() if of == layer]
            table[layer, head] = np.mean(known, axis=0)
        return table

    def rules(self, **rules: str) -> dict[str, Any]:
        """These rules, and the rule for heads that were not captured, if there are any."""
        return {**self.filled.rules(), **rules}


def _refuse_layers(dump: Dump, layers: range) -> None:
    for layer in layers:
        record = dump.layer(layer)
        if record is not None and record.selective:
            raise ConfigError(
                f"{dump.path}: layer {layer}: {SELECTIVE}. No format has a place for this"
            )
