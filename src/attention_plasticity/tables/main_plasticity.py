"""Which plasticity of a run a reader sees first: RoPE-aligned, or over a bucket.

RoPE-aligned plasticity (`ap_aligned`) is what the content of a query decides. It has errors, a
first and a last fifth, and the drop between them with its parts. Plasticity over a bucket
(`ap_overall`) also counts the rotation of RoPE inside the bucket; it has a level only. Dumps
without rotary records have the second one only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from attention_plasticity.metrics import (
    ALIGNED,
    ALIGNED_DROP,
    ALIGNED_FIRST,
    ALIGNED_LAST,
    DROP_DISTANCE,
    DROP_POSITION,
    POOLED,
    TableKind,
)

if TYPE_CHECKING:
    import pandas as pd

FIFTH_WORDS = ("first fifth", "last fifth")
"""Names of the fifths, in their order."""


@dataclass(frozen=True)
class PlasticityColumns:
    """The columns of one kind of plasticity, and its name in words."""

    level: str
    name: str
    fifths: tuple[str, ...] = ()  # first and last
    drop: str | None = None
    parts: tuple[str, ...] = ()  # of the drop: at equal distances of keys, from distances

    @property
    def title(self) -> str:
        """The name at the beginning of a sentence."""
        return f"{self.name[:1].upper()}{self.name[1:]}"

    @property
    def all(self) -> tuple[str, ...]:
        """The columns that are means over query positions."""
        return (self.level, *self.fifths, *filter(None, [self.drop]), *self.parts)


AT_ONE_POSITION = PlasticityColumns(
    ALIGNED,
    "RoPE-aligned plasticity",
    (ALIGNED_FIRST, ALIGNED_LAST),
    ALIGNED_DROP,
    (DROP_POSITION, DROP_DISTANCE),
)
OVER_BUCKETS = PlasticityColumns("ap_overall", "plasticity over a bucket")
OVER_BINS = PlasticityColumns(POOLED, "plasticity over a bin")
"""The only one of a run without rotary records and with `original_columns: false`."""


class WithPlasticity(Protocol):
    """A run with its table of heads, or with a table of bins alone."""

    def has(self, kind: TableKind) -> bool:
        """Whether there is a table."""

    @property
    def head_metrics(self) -> pd.DataFrame:
        """One row per head."""


def main_plasticity(
    *runs: WithPlasticity, wanted: Literal["position", "bucket"] | None = None
) -> PlasticityColumns:
    """RoPE-aligned plasticity if a head of every run has it, else plasticity over a bucket.

    With `wanted`, the plasticity that is asked for.
    """
    if wanted is not None:
        return AT_ONE_POSITION if wanted == "position" else OVER_BUCKETS
    return AT_ONE_POSITION if runs and all(map(_at_one_position, runs)) else OVER_BUCKETS


def _at_one_position(run: WithPlasticity) -> bool:
    if not run.has("head_metrics"):
        return run.has("bins")
    heads = run.head_metrics
    return ALIGNED in heads and bool(heads[ALIGNED].notna().any())
