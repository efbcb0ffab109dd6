"""The queries or keys of a head with their dimensions in the order of rotary bands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attention_plasticity.head.layer import (
    LayerRotation,
    after_rope,
    before_rope,
    in_attention,
    scale_of,
)
from attention_plasticity.numeric.bands import BandMeans, band_means
from qk_dump.rotary import RotaryRecord, pair_dimensions
from qk_toolkit.arrays import Array, Ints, Vectors


@dataclass(frozen=True)
class BandRows:
    """Vectors as they enter the attention, and their means before RoPE.

    Both were divided by two to the power `exponent`, so that no value is larger than 1.
    """

    vectors: Vectors  # (n, d) first dimensions of all bands, second ones, other dimensions
    means: BandMeans
    exponent: int

    @classmethod
    def of(
        cls,
        vectors: Vectors,
        position: Array,
        rotation: LayerRotation,
        weight: Array,
        group: Ints | None,
    ) -> BandRows:
        """From vectors (n, d) of a layer whose rotary record is known.

        If they were captured before RoPE, they get the factor that the model has on cos and sin.
        """
        record = rotation.record
        assert record is not None
        exponent = scale_of(vectors)
        scaled = in_attention(vectors, exponent, rotation)  # (n, d)
        order = _order(record, vectors.shape[1])
        turned = after_rope(scaled, position, rotation)
        before = before_rope(scaled, position, rotation)
        assert before is not None
        bands = len(record.frequencies)
        means = band_means(_arranged(before, order), bands, weight, group)
        return cls(_arranged(turned, order), means, exponent)


def _order(record: RotaryRecord, width: int) -> npt.NDArray[np.intp]:
    """(d,) the dimensions in the order of `BandRows.vectors`."""
    dimensions = np.arange(width)
    first, second = pair_dimensions(record)
    turned = np.concatenate([dimensions[first], dimensions[second]])
    return np.concatenate([turned, np.setdiff1d(dimensions, turned)])


def _arranged(vectors: Vectors, order: npt.NDArray[np.intp]) -> Vectors:
    return vectors if (order == np.arange(len(order))).all() else vectors[:, order]
