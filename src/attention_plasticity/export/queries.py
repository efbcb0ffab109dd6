"""The queries of one head, before or after RoPE, with their weights and groups of texts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from attention_plasticity.read.layer import (
    LayerRotation,
    before_rope,
    in_attention,
    rotation_of,
    with_rotary_factor,
)
from attention_plasticity.read.texts import DumpTexts
from attention_plasticity.read.weights import token_weights
from qk_dump.column_rules import rules_of
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows, read_head
from qk_toolkit.arrays import Array, Ints, Vectors
from qk_toolkit.errors import ConfigError, HeadError

_FEWEST = 2  # a covariance needs two


@dataclass(frozen=True)
class HeadQueries:
    """Queries of one head."""

    head: HeadId
    rows: HeadRows
    rotation: LayerRotation
    weight: Array  # (n,) tokens that each query stands for
    group: Ints | None  # (n,) group of the text of every query; None: not known

    @classmethod
    def read(
        cls,
        dump: Dump,
        head: tuple[int, int],
        texts: DumpTexts,
        *,
        max_rows: int,
        seed: int = 0,
        first: int = 0,
    ) -> HeadQueries:
        """Read at most `max_rows` queries, and leave out positions below `first`."""
        name = HeadId(*head, "q")
        rows = read_head(
            dump.require_files(name),
            max_rows=max_rows,
            seed=seed,
            with_examples="if present",
            rules=rules_of(dump, name.layer),
        )
        if rows.example_id is not None:
            texts.require(rows.example_id, dump.folders[name])
        weight = token_weights(dump, "q", rows)
        if first:
            kept = np.flatnonzero(rows.position >= first)
            rows, weight = _chosen(rows, kept), weight[kept]
        if len(rows) < _FEWEST:
            where = f" at position {first} or later" if first else ""
            raise HeadError(
                f"{dump.folders[name]}: has {len(rows)} queries{where}; {_FEWEST} or more are "
                "needed. Capture more tokens."
            )
        group = None if rows.example_id is None else texts.groups.of(rows.example_id)
        rotation = rotation_of(dump, name.layer).for_width(rows.width)
        return cls(name, rows, rotation, weight, group)

    @property
    def name(self) -> str:
        """The folder of the head."""
        return self.head.folder

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
            raise ConfigError(f"{self.name}: {self.rotation.problem}")
        return self.rotation

    def entry(self, **errors: float) -> dict[str, Any]:
        """Rows and errors of the head for `PROVENANCE.json`; null: not known."""
        known = {name: value if math.isfinite(value) else None for name, value in errors.items()}
        facts = {"layer": self.head.layer, "head": self.head.head, "rows": len(self.rows)}
        return {**facts, **known}


def _chosen(rows: HeadRows, kept: Ints) -> HeadRows:
    return replace(
        rows,
        bucket=rows.bucket[kept],
        position=rows.position[kept],
        vectors=rows.vectors[kept],
        example_id=None if rows.example_id is None else rows.example_id[kept],
    )
