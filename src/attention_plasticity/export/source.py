"""The heads of a model that a file must have, those that the dump has, and refusals.

Files of other tools have one entry per head of the model, in the order of heads, and no place to
say that a head is not known. So a head that was not captured is refused, or filled by a rule that
the user chose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.export.queries import HeadQueries
from attention_plasticity.read.layer import SELECTIVE, LayerRotation, logits_of, rotation_of
from attention_plasticity.read.layout import HeadLayout, head_layout
from attention_plasticity.read.texts import DumpTexts, texts_of_dump
from attention_plasticity.read.weights import why_no_weights
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_dump.rotary import RotaryRecord
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError, DumpError, HeadError
from qk_toolkit.formatting import count, index_ranges
from qk_toolkit.watcher import Watcher

Missing = Literal["refuse", "mean"]
MEAN_RULE = "a query head that was not captured has the mean of the captured heads of its layer"

_MOST_NAMES = 8  # of heads in a message


@dataclass(frozen=True)
class ExportSource:
    """A dump whose heads can be exported."""

    dump: Dump
    layout: HeadLayout
    texts: DumpTexts
    missing: list[tuple[int, int]]  # query heads that are filled by the rule
    max_rows: int
    seed: int = 0
    watcher: Watcher = field(default_factory=Watcher)

    @classmethod
    def of(
        cls,
        dump: Dump,
        *,
        missing: Missing = "refuse",
        max_rows: int = 50_000,
        watcher: Watcher | None = None,
    ) -> ExportSource:
        """The heads of a dump. Raises a `ConfigError` if the file could not be complete."""
        watcher = watcher or Watcher()
        layout = _layout(dump)
        layers = range(layout.num_layers)
        _refuse_layers(dump, layers)
        absent = _absent(dump, layout)
        if absent and missing == "refuse":
            raise ConfigError(
                f"{dump.path}: {count(len(absent), 'query head')} of {_number(layout)} "
                f"{'was' if len(absent) == 1 else 'were'} not captured: {_names(absent)}. A file "
                "needs every head: capture the others, or give --missing mean"
            )
        _refuse_empty_layers(dump, layout, absent)
        if absent:
            watcher.note(f"{count(len(absent), 'query head')}: not captured; {MEAN_RULE}")
        why = why_no_weights(dump.manifest)
        if why is not None:
            watcher.note(f"{dump.path}: all rows have the weight 1: {why}")
        texts = texts_of_dump(dump, layers)
        return cls(dump, layout, texts, absent, max_rows, watcher=watcher)

    @property
    def manifest(self) -> DumpManifest:
        """The content of dump.json."""
        assert self.dump.manifest is not None
        return self.dump.manifest

    @property
    def model(self) -> str:
        """The name of the model, or else of the dump."""
        return self.manifest.model or self.dump.name

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and query heads."""
        return self.layout.num_layers, self.layout.num_q_heads

    @property
    def groups(self) -> int:
        """Query heads of a key head."""
        return self.layout.num_q_heads // self.layout.num_k_heads

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

    def queries(self, *, first: int = 0) -> Iterator[tuple[int, int, HeadQueries]]:
        """Layer, head and queries of every captured head, one after the other.

        Queries at positions below `first` are left out. All heads must have one width.
        """
        heads = [head for head in self.dump.query_heads if head[0] < self.layout.num_layers]
        width: tuple[int, str] | None = None
        self.watcher.start("heads", len(heads))
        try:
            for layer, head in heads:
                read = HeadQueries.read(
                    self.dump,
                    (layer, head),
                    self.texts,
                    max_rows=self.max_rows,
                    seed=self.seed,
                    first=first,
                )
                width = width or (read.width, read.name)
                if read.width != width[0]:
                    raise DumpError(
                        f"{self.dump.path}: {read.name} has vectors of {read.width} dimensions, "
                        f"{width[1]} of {width[0]}. The file has one width for all heads"
                    )
                yield layer, head, read
                self.watcher.advance()
        finally:
            self.watcher.stop()

    def table(self, values: dict[tuple[int, int], Array]) -> Array:
        """(layers, query heads, …) from the arrays of captured heads; others by the rule."""
        shape = next(iter(values.values())).shape
        table = np.zeros((*self.shape, *shape))
        for (layer, head), value in values.items():
            if not np.isfinite(value.astype(np.float32)).all():
                raise HeadError(
                    f"{self.dump.path}: layer {layer}, query head {head}: a value is not a finite "
                    "float32. Capture the head again."
                )
            table[layer, head] = value
        for layer, head in self.missing:
            known = [value for (of, _), value in values.items() if of == layer]
            table[layer, head] = np.mean(known, axis=0)
        return table

    def rules(self) -> dict[str, Any]:
        """The rule for heads that were not captured, if there are any."""
        if not self.missing:
            return {}
        heads = [[layer, head] for layer, head in self.missing]
        return {"missing": {"rule": MEAN_RULE, "heads": heads}}


def require_whole_halves(records: list[RotaryRecord], width: int, tool: str) -> None:
    """Refuse a rotary embedding other than that of Llama: halves of the whole vector."""
    for layer, record in enumerate(records):
        if record.pairing != "halves":
            raise ConfigError(
                f"layer {layer}: RoPE turns neighbouring dimensions; {tool} turns halves"
            )
        _require_whole(record, layer, width, tool)


def require_one_pairing(records: list[RotaryRecord], width: int, tool: str) -> None:
    """Refuse bands that do not cover the vector, and different pairings in one model."""
    for layer, record in enumerate(records):
        if record.pairing != records[0].pairing:
            raise ConfigError(
                f"layer {layer}: RoPE has the pairing {record.pairing}, layer 0 "
                f"{records[0].pairing}; the file of {tool} has one for all layers"
            )
        _require_whole(record, layer, width, tool)


def _require_whole(record: RotaryRecord, layer: int, width: int, tool: str) -> None:
    if record.dimensions != width:
        raise ConfigError(
            f"layer {layer}: RoPE turns {record.dimensions} of {width} dimensions; {tool} needs "
            "all of them"
        )


def _layout(dump: Dump) -> HeadLayout:
    for name in ("num_layers", "num_q_heads", "num_k_heads"):
        if getattr(dump.manifest, name, None) is None:
            raise ConfigError(
                f"{dump.path}: dump.json does not have {name}, so a file could lack heads of the "
                "model. Add it to dump.json, or capture again"
            )
    return head_layout(dump, RunnerConfig())


def _refuse_layers(dump: Dump, layers: range) -> None:
    for layer in layers:
        if logits_of(dump, layer).problem == SELECTIVE:
            raise ConfigError(
                f"{dump.path}: layer {layer}: {SELECTIVE}. No format has a place for this"
            )
    entries = (dump.manifest and dump.manifest.layers) or []
    widths = {entry.get("head_dim"): entry.get("layer") for entry in reversed(entries)}
    widths.pop(None, None)
    if len(widths) > 1:
        text = ", ".join(f"{width} in layer {layer}" for width, layer in sorted(widths.items()))
        raise ConfigError(
            f"{dump.path}: heads have different widths ({text}); a file has one for all heads"
        )


def _absent(dump: Dump, layout: HeadLayout) -> list[tuple[int, int]]:
    captured = set(dump.query_heads)
    every = [(i, j) for i in range(layout.num_layers) for j in range(layout.num_q_heads)]
    return [head for head in every if head not in captured]


def _refuse_empty_layers(dump: Dump, layout: HeadLayout, absent: list[tuple[int, int]]) -> None:
    numbers = [layer for layer, _ in absent]
    empty = [layer for layer in set(numbers) if numbers.count(layer) == layout.num_q_heads]
    if empty:
        raise ConfigError(
            f"{dump.path}: no query head of layers {index_ranges(empty)} was captured, so there is "
            "no mean to fill them with. Capture these layers"
        )


def _number(layout: HeadLayout) -> str:
    return f"{layout.num_layers * layout.num_q_heads:,}"


def _names(heads: list[tuple[int, int]]) -> str:
    names = ", ".join(f"l{layer:02d}h{head:02d}q" for layer, head in heads[:_MOST_NAMES])
    return names + (" and others" if len(heads) > _MOST_NAMES else "")
