"""The queries or keys of a head for the geometry of their drift, after and before RoPE."""

from __future__ import annotations

from dataclasses import dataclass

from attention_plasticity.head.layer import (
    LayerRotation,
    after_rope,
    before_rope,
    in_attention,
    scale_of,
)
from attention_plasticity.numeric.drift_geometry import GroupMoments
from qk_toolkit.arrays import Array, Ints, Vectors

NO_VARIANCE = "the vectors do not vary"
FEW_DIMENSIONS = "the vectors do not vary along a further dimension"


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
