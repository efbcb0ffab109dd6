"""Points of a head: some of its queries and keys on two principal components, in both frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attention_plasticity.head.drift_rows import FEW_DIMENSIONS, NO_VARIANCE, DriftRows
from attention_plasticity.head.layer import LayerRotation, after_rope, before_rope, in_attention
from attention_plasticity.head.result import Columns
from attention_plasticity.head.token_weights import TokenWeights
from attention_plasticity.metrics import AFTER_ROPE
from attention_plasticity.numeric.drift_geometry import COMPONENTS, GroupMoments
from qk_dump.reader import HeadRows
from qk_toolkit.arrays import Array, Ints, Vectors

_SEED = 7  # beside the seed of the key pairs, so that pairs do not change
_DIGITS = 5  # of a coordinate of a point


@dataclass(frozen=True)
class PointRows:
    """The queries or keys of which points are taken."""

    kind: str  # "q" or "k"
    rows: HeadRows
    weights: TokenWeights
    rotation: LayerRotation
    moments: DriftRows
    exponent: int  # of the vectors in the moments
    seed: int
    most: int  # points

    @cached_property
    def drawn(self) -> Ints:
        """(m,) row numbers, drawn in proportion to their weights.

        The order is that of the draw: the first rows are a sample, too.
        """
        rng = np.random.default_rng([self.seed, _SEED])
        waiting = rng.exponential(size=len(self.rows)) / self.weights.weight  # (n,)
        return np.argsort(waiting, kind="stable")[: self.most]

    @cached_property
    def position(self) -> Array:
        """(m,) positions of the points."""
        found: Array = self.rows.position[self.drawn]
        return found

    def coordinates(self, ending: str) -> Array | None:
        """(m, 2) of the frame whose columns have this ending; None if it is not known."""
        vectors = in_attention(self.rows.vectors[self.drawn], self.moments.exponent, self.rotation)
        if ending == AFTER_ROPE:
            turned = after_rope(vectors, self.position, self.rotation)  # (m, d)
            return _projected(turned, self.moments.after)
        return _projected(before_rope(vectors, self.position, self.rotation), self.moments.before)


@dataclass(frozen=True)
class HeadPoints:
    """Columns of the table of points, and why those of a frame are NaN."""

    columns: Columns = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # column → reason


def head_points(parts: Sequence[PointRows], no_rotation: str) -> HeadPoints:
    """The points of queries and keys. There are none if no frame has coordinates of both.

    `no_rotation` is the reason if a frame is not known.
    """
    columns: Columns = {
        "kind": [part.kind for part in parts for _ in part.drawn],
        "position": [int(one) for part in parts for one in part.position],
    }
    missing: dict[str, str] = {}
    for ending in ("", AFTER_ROPE):
        found = [part.coordinates(ending) for part in parts]
        why = _why_missing(found, no_rotation)
        for number in range(COMPONENTS):
            name = f"pc{number}{ending}"
            columns[name] = []
            for part, places in zip(parts, found, strict=True):
                if why is not None or places is None:
                    columns[name] += [np.nan] * len(part.drawn)
                else:
                    columns[name] += _rounded(places[:, number], part.exponent)
            if why is not None:
                missing[name] = why
    return HeadPoints() if len(missing) == 2 * COMPONENTS else HeadPoints(columns, missing)


def _projected(vectors: Vectors | None, moments: GroupMoments | None) -> Array | None:
    """(m, 2) coordinates on the components; NaN if there is no such component."""
    if vectors is None or moments is None:
        return None
    found: Array = (vectors - moments.components.mean) @ moments.components.axes
    return found


def _why_missing(found: Sequence[Array | None], no_rotation: str) -> str | None:
    """Why a frame has no coordinates; None if it has those of queries and of keys."""
    known = [places for places in found if places is not None]
    if len(known) < len(found):
        return no_rotation
    if any(np.isnan(places[:, 0]).any() for places in known):
        return NO_VARIANCE
    return FEW_DIMENSIONS if any(np.isnan(places).any() for places in known) else None


def _rounded(values: Array, exponent: int) -> Iterator[float]:
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(values, exponent)
    yield from (float(f"{value:.{_DIGITS}g}") for value in scaled.tolist())
