"""What a reader of a run's numbers should know, in one sentence per kind for the whole run.

Query buckets with too few queries or texts: sizes are gathered while the heads pass on their way
into the tables. Layers that select keys: `dump.json` tells them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from attention_plasticity.results import HeadResult
from qk_dump.buckets import BucketGeometry
from qk_dump.manifest import DumpManifest
from qk_toolkit.formatting import index_ranges, index_runs

FEW_QUERIES = 32
FEW_TEXTS = 4
_MOST_RANGES = 6


@dataclass(frozen=True)
class RunWarning:
    """A sentence about a run's numbers, and the heads that it concerns."""

    kind: Literal["few_queries", "few_texts", "texts_unknown", "selective_layers"]
    text: str
    heads: int  # that it concerns
    buckets: list[int]  # query buckets that it concerns in some head
    fewest: int | None  # queries or texts in the smallest of them

    @property
    def label(self) -> str:
        """`Warning`, or `Note` where nothing is known to be wrong."""
        return "Note" if self.kind in ("texts_unknown", "selective_layers") else "Warning"


@dataclass
class _Small:
    """Buckets below a limit, over all heads."""

    limit: int
    heads: int = 0
    buckets: set[int] = field(default_factory=set)
    fewest: int | None = None

    def add(self, sizes: dict[int, int]) -> None:
        small = {bucket: size for bucket, size in sizes.items() if size < self.limit}
        if small:
            self.heads += 1
            self.buckets |= small.keys()
            fewest = min(small.values())
            self.fewest = fewest if self.fewest is None else min(fewest, self.fewest)


class SampleSizes:
    """Queries and texts of the query buckets of all heads of a run."""

    def __init__(self, *, single_example: bool = False) -> None:
        self._single_example = single_example
        self._heads = 0
        self._unknown = 0
        self._queries = _Small(FEW_QUERIES)
        self._texts = _Small(FEW_TEXTS)

    def watched(self, results: Iterable[HeadResult]) -> Iterator[HeadResult]:
        """The same results, counted as they pass."""
        for result in results:
            self._add(result)
            yield result

    def warnings(self, geometry: BucketGeometry | None) -> list[RunWarning]:
        """What is to be said of the heads that have passed."""
        found = []
        if self._queries.heads:
            where = self._where(self._queries, geometry)
            text = (
                f"Fewer than {FEW_QUERIES} queries in {where}; the smallest holds "
                f"{self._queries.fewest}. Plasticity there is unreliable: capture more texts."
            )
            found.append(_warning("few_queries", text, self._queries))
        if self._texts.heads:
            where = self._where(self._texts, geometry)
            text = (
                f"Fewer than {FEW_TEXTS} texts in {where}; the smallest number is "
                f"{self._texts.fewest}. Plasticity there depends on single texts: capture more "
                "texts of this length."
            )
            found.append(_warning("few_texts", text, self._texts))
        if self._unknown:
            found.append(RunWarning("texts_unknown", self._why_unknown(), self._unknown, [], None))
        return found

    def _add(self, result: HeadResult) -> None:
        columns = result.buckets
        self._heads += 1
        self._queries.add(dict(zip(columns["q_bucket"], columns["n_queries"], strict=True)))
        texts = dict(zip(columns["q_bucket"], columns["n_texts"], strict=True))
        if any(math.isnan(number) for number in texts.values()):
            self._unknown += 1
        else:
            self._texts.add(texts)

    def _where(self, small: _Small, geometry: BucketGeometry | None) -> str:
        runs = index_runs(small.buckets)[:_MOST_RANGES]
        named = [bucket for bucket in small.buckets if bucket <= runs[-1][1]]
        more = len(small.buckets) - len(named)
        text = f"query bucket{'s' * (len(small.buckets) > 1)} {index_ranges(named)}"
        if more:
            text += f" and {more} more"
        if geometry is not None:
            starts = geometry.starts([first for first, _ in runs])
            ends = geometry.ends([last for _, last in runs])
            spans = (f"{start:,}-{end:,}" for start, end in zip(starts, ends, strict=True))
            text += f" (positions {', '.join(spans)})"
        return f"{text}, in {small.heads:,} of {self._heads:,} heads"

    def _why_unknown(self) -> str:
        text = "The number of texts per query bucket is not known"
        if self._single_example:
            return f"{text}: single_example was set."
        return (
            f"{text} in {self._unknown:,} of {self._heads:,} heads: their queries have no usable "
            "example_id."
        )


def selective_layers(
    manifest: DumpManifest | None, heads: Sequence[tuple[int, int]]
) -> list[RunWarning]:
    """What plasticity means in layers that choose by content which keys a query sees."""
    told = (manifest.layers if manifest else None) or []
    selective = {entry.get("layer") for entry in told if entry.get("selective") is True}
    concerned = [layer for layer, _ in heads if layer in selective]
    if not concerned:
        return []
    layers = sorted(set(concerned))
    which = f"layer{'s' * (len(layers) > 1)} {index_ranges(layers)}"
    text = (
        f"In {which} the content of keys decides which of them a query sees. Plasticity there "
        "compares any two earlier keys, also those that the layer hides from the query."
    )
    return [RunWarning("selective_layers", text, len(concerned), [], None)]


def _warning(kind: Literal["few_queries", "few_texts"], text: str, small: _Small) -> RunWarning:
    return RunWarning(kind, text, small.heads, sorted(small.buckets), small.fewest)
