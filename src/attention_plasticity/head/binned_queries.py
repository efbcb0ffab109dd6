"""Queries of a head in bins of positions, turned to the mean position of their bin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from attention_plasticity.head.layer import LayerRotation, after_rope
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.token_weights import TokenWeights
from attention_plasticity.numeric.bins import Bins
from attention_plasticity.numeric.drift import Drift, TurnedRows, drift
from attention_plasticity.numeric.errors.text_groups import TextGroups
from attention_plasticity.numeric.sizes import GROUPS
from qk_dump.reader import HeadRows
from qk_dump.rotary import RotaryRecord, rotate
from qk_toolkit.arrays import Array, Ints, Vectors


@dataclass(frozen=True)
class BinnedQueries:
    """Queries as they enter the attention of the model, and turned.

    They are sorted by bin, and in a bin by group of texts.
    """

    bin: Ints  # (n,)
    position: Array  # (n,)
    example_id: Ints | None  # (n,)
    weight: Array  # (n,)
    target: Array  # (n,) mean position of the bin
    vectors: Vectors  # (n, d)
    turned: Vectors  # (n, d) to the mean position of the bin; `vectors` without RoPE

    @classmethod
    def of(
        cls,
        rows: HeadRows,
        weights: TokenWeights,
        bins: Bins,
        keys: KeyHead,
    ) -> BinnedQueries:
        """Sort the queries and turn them."""
        numbers, rotation = bins.of(rows.position), keys.rotation
        group = 0 if rows.example_id is None else keys.groups.of(rows.example_id)
        order = np.argsort(numbers * GROUPS + group, kind="stable")
        number, position = numbers[order], rows.position[order]
        vectors = after_rope(rows.vectors[order], position, rotation)
        target, turned = _mean_positions(number, position), vectors
        if rotation.record is not None:
            turned = rotate(vectors, position, target, rotation.record)
        examples = None if rows.example_id is None else rows.example_id[order]
        return cls(number, position, examples, weights.weight[order], target, vectors, turned)

    def drift(self, rotation: LayerRotation, groups: TextGroups | None) -> Drift:
        """How far the queries drift with position before RoPE; without groups, no errors."""
        group = None
        if groups is not None and self.example_id is not None:
            group = groups.of(self.example_id)  # (n,)
        turned = None
        if rotation.record is not None:
            starts = np.flatnonzero(np.diff(self.bin, prepend=-1))
            ends = np.append(starts[1:], len(self.bin))
            turned = [
                TurnedRows(
                    slice(begin, end),
                    partial(_turned, 0.0, self.target[begin], rotation.record),
                    partial(_turned, self.target[begin], 0.0, rotation.record),
                )
                for begin, end in zip(starts, ends, strict=True)
            ]
        return drift(self.position, self.turned, self.weight, group, turned)


def _turned(position: float, target: float, record: RotaryRecord, vectors: Array) -> Array:
    """Vectors (m, d) at `position`, turned to `target`."""
    return np.asarray(rotate(vectors, position, target, record), np.float64)


def _mean_positions(number: Ints, position: Array) -> Array:
    """(n,) the mean position of the queries of the bin of each query; bins are ascending."""
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    sizes = np.diff(starts, append=len(number))  # (bins,)
    return np.repeat(np.add.reduceat(position, starts) / sizes, sizes)
