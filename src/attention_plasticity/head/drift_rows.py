"""The queries or keys of a head for the geometry of their drift, after and before RoPE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.head.layer import (
    LayerRotation,
    after_rope,
    before_rope,
    with_rotary_factor,
)
from attention_plasticity.numeric.drift_geometry import GroupMoments
from qk_toolkit.arrays import Array, Ints, Vectors


@dataclass(frozen=True)
class DriftRows:
    """Moments of vectors that were divided by two to the power `exponent`.

    None: the vectors of this frame are not known, because the rotary embedding is not.
    """

    after: GroupMoments | None  # as the vectors enter the attention
    before: GroupMoments | None  # before RoPE
    exponent: int

    @classmethod
    def of(
        cls,
        vectors: Vectors,
        position: Array,
        rotation: LayerRotation,
        weight: Array,
        group: Ints,
    ) -> DriftRows:
        """From vectors (n, d). Those without RoPE have the same moments in both frames."""
        exponent = scale_of(vectors)
        scaled = in_attention(vectors, exponent, rotation)  # (n, d)
        before = before_rope(scaled, position, rotation)
        known = None if before is None else GroupMoments.of(position, before, weight, group)
        if rotation.record is None:
            if rotation.problem is None:
                return cls(known, known, exponent)
            if rotation.pre_rope:
                return cls(None, known, exponent)
        turned = after_rope(scaled, position, rotation)
        return cls(GroupMoments.of(position, turned, weight, group), known, exponent)


def scale_of(vectors: Vectors) -> int:
    """The exponent of the power of two by which no value is larger than 1."""
    largest = max(vectors.max(initial=0.0), -vectors.min(initial=0.0))
    return int(np.frexp(largest)[1])


def in_attention(vectors: Vectors, exponent: int, rotation: LayerRotation) -> Vectors:
    """The vectors divided by two to the power `exponent`.

    If they were captured before RoPE, they get the factor that the model has on cos and sin.
    """
    scaled: Vectors = np.ldexp(vectors, -exponent)
    if rotation.pre_rope and rotation.record is not None:
        return with_rotary_factor(scaled, rotation.record, rotation.record.scaling)
    return scaled
