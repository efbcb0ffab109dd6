"""Warnings about the results of a run, one sentence per kind for the whole run.

There are warnings about bins or query buckets with few queries or texts, about layers that select
keys by content (from `dump.json`), about texts that `examples.parquet` does not name, about
attended plasticity, and about a sampler that is not known. They are about the plasticity that a
reader sees first: at one position, which is computed in bins, where it is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from attention_plasticity.head.layer import NO_COLUMNS
from attention_plasticity.head.result import HeadResult
from attention_plasticity.head.token_weights import why_no_weights
from attention_plasticity.metrics import ALIGNED, ATTENDED, TOKEN_MEANS
from qk_dump.buckets import BucketGeometry
from qk_dump.keep_probabilities import keep_probabilities
from qk_dump.manifest import DumpManifest
from qk_toolkit.formatting import count, index_ranges, index_runs

FEW_QUERIES = 32
FEW_TEXTS = 4
FEW_LATER_QUERIES = 8
FEW_EFFECTIVE_PAIRS = 16
LARGE_BIAS: Final = "large_bias"
"""The kind of a warning about values that are not corrected for bias."""

ATTENDED_FROM_QUERIES: Final = "attended_from_queries"
"""The kind of a note about attended plasticity without keys that were drawn by attention."""

_MOST_RANGES = 6
_LATE = 1 << 30  # a position of which a sampler keeps the fewest rows
_NOTES = (
    "texts_unknown",
    "selective_layers",
    "attended_unknown",
    "aligned_unknown",
    "weights_unknown",
    ATTENDED_FROM_QUERIES,
)
"""Kinds of warnings about results that may still be correct."""


@dataclass(frozen=True)
class RunWarning:
    """A warning about the results of a run, and the heads that it concerns."""

    kind: Literal[
        "few_queries",
        "few_texts",
        "texts_unknown",
        "texts_not_named",
        "large_bias",
        "selective_layers",
        "few_later_queries",
        "attended_unknown",
        "aligned_unknown",
        "weights_unknown",
        "attended_from_queries",
    ]
    text: str
    heads: int  # number of heads
    buckets: list[int]  # query buckets or bins, in any of these heads
    fewest: int | None  # queries or texts in the smallest of them

    @property
    def label(self) -> str:
        """`Warning`, or `Note` if the results may still be correct."""
        return "Note" if self.kind in _NOTES else "Warning"


@dataclass
class _LowCounts:
    """Buckets with fewer queries or texts than the limit, over all heads."""

    limit: int
    heads: int = 0
    buckets: set[int] = field(default_factory=set)
    fewest: int | None = None
    most: int = 0  # in any bucket

    def add(self, sizes: dict[int, int]) -> None:
        self.most = max([self.most, *sizes.values()])
        small = {bucket: size for bucket, size in sizes.items() if size < self.limit}
        if small:
            self.heads += 1
            self.buckets |= small.keys()
            fewest = min(small.values())
            self.fewest = fewest if self.fewest is None else min(fewest, self.fewest)


@dataclass
class _Sizes:
    """Queries and texts in buckets, or in bins, over the heads that have them."""

    name: str  # of a bucket in messages
    quantity: str  # what is computed in it
    queries: _LowCounts = field(default_factory=lambda: _LowCounts(FEW_QUERIES))
    texts: _LowCounts = field(default_factory=lambda: _LowCounts(FEW_TEXTS))

    def add(self, bucket: Sequence[int], queries: Sequence[int], texts: Sequence[float]) -> bool:
        """Add the cells of a head. Returns whether its texts are known."""
        self.queries.add(dict(zip(bucket, queries, strict=True)))
        known = not any(math.isnan(number) for number in texts)
        if known:
            self.texts.add(dict(zip(bucket, map(int, texts), strict=True)))
        return known

    def where(self, small: _LowCounts, geometry: BucketGeometry | None, heads: int) -> str:
        """The small buckets in words, with their positions."""
        runs = index_runs(small.buckets)[:_MOST_RANGES]
        named = [bucket for bucket in small.buckets if bucket <= runs[-1][1]]
        more = len(small.buckets) - len(named)
        text = f"{self.name}{'s' * (len(small.buckets) > 1)} {index_ranges(named)}"
        if more:
            text += f" and {more} more"
        if geometry is not None:
            starts = geometry.starts([first for first, _ in runs])
            ends = geometry.ends([last for _, last in runs])
            spans = (f"{start:,}-{end:,}" for start, end in zip(starts, ends, strict=True))
            text += f" (positions {', '.join(spans)})"
        return f"{text}, in {small.heads:,} of {heads:,} heads"


class SampleSizes:
    """Numbers of queries and texts per bin or query bucket, over all heads of a run.

    A head with plasticity at one position counts with its bins, another with its query buckets.
    """

    def __init__(self, *, single_example: bool = False, equal_texts: bool = False) -> None:
        self._single_example = single_example
        self._equal_texts = equal_texts
        self._heads = 0
        self._unknown = 0
        self._bins = _Sizes("bin", "Plasticity at one position")
        self._buckets = _Sizes("query bucket", "Plasticity over a bucket")
        self._attended_problems: dict[str, int] = {}
        self._aligned_problems: dict[str, int] = {}

    def warnings(
        self, geometry: BucketGeometry | None, bin_size: int | None = None
    ) -> list[RunWarning]:
        """Warnings about the counted heads."""
        bins = None if bin_size is None else BucketGeometry("uniform", bin_size)
        found = [*self._small(self._bins, bins), *self._small(self._buckets, geometry)]
        if self._unknown:
            found.append(RunWarning("texts_unknown", self._why_unknown(), self._unknown, [], None))
        for reason, heads in self._attended_problems.items():
            text = (
                f"Attended plasticity is not known in {heads:,} of {self._heads:,} heads: {reason}."
            )
            found.append(RunWarning("attended_unknown", text, heads, [], None))
        for reason, heads in self._aligned_problems.items():
            text = (
                f"Plasticity at one position is not known in {heads:,} of {self._heads:,} heads: "
                f"{reason}."
            )
            found.append(RunWarning("aligned_unknown", text, heads, [], None))
        return found

    def _small(self, sizes: _Sizes, geometry: BucketGeometry | None) -> Iterator[RunWarning]:
        queries, texts = sizes.queries, sizes.texts
        in_bins = sizes is self._bins
        if queries.heads:
            where = sizes.where(queries, geometry, self._heads)
            text = (
                f"Fewer than {FEW_QUERIES} queries in {where}; the smallest "
                f"{'bin' if in_bins else 'bucket'} has {queries.fewest}. {sizes.quantity} is "
                f"unreliable there. Capture more texts{', or set a larger bin_size' * in_bins}."
            )
            yield _warning("few_queries", text, queries)
        if texts.heads:
            where = sizes.where(texts, geometry, self._heads)
            text = (
                f"Fewer than {FEW_TEXTS} texts in {where}; the smallest number is {texts.fewest}. "
                f"{sizes.quantity} depends on single texts there. Capture more texts of this length"
                f"{self._other_remedy(texts)}."
            )
            yield _warning("few_texts", text, texts)

    def add(self, result: HeadResult) -> None:
        """Count the bins of a head, or its query buckets if it has no bins."""
        self._heads += 1
        problem, no_columns = result.missing.get(ATTENDED), result.missing.get("attn_entropy")
        if problem is not None and no_columns != NO_COLUMNS:
            self._attended_problems[problem] = self._attended_problems.get(problem, 0) + 1
        problem = result.missing.get(ALIGNED)
        if problem is not None:
            self._aligned_problems[problem] = self._aligned_problems.get(problem, 0) + 1
        if problem is None and result.bins:
            columns, sizes, name = result.bins, self._bins, "q_bin"
        else:
            columns, sizes, name = result.buckets, self._buckets, "q_bucket"
        if not sizes.add(columns[name], columns["n_queries"], columns["n_texts"]):
            self._unknown += 1

    def _other_remedy(self, texts: _LowCounts) -> str:
        if self._equal_texts or texts.most == texts.fewest:  # nothing would change
            return ""
        return ", or set equal_texts to use the same texts everywhere"

    def _why_unknown(self) -> str:
        text = "Standard errors and bias are not known, nor the numbers of texts"
        if self._single_example:
            return f"{text}: single_example is set."
        return (
            f"{text} in {self._unknown:,} of {self._heads:,} heads: the queries have no usable "
            "example_id."
        )


def bias_warnings(metrics: Sequence[dict[str, Any]]) -> list[RunWarning]:
    """A warning about heads whose bias is large compared with their standard error.

    It is about plasticity at one position if a head has it, else about plasticity over a bucket.
    """
    at_one_position = any(not math.isnan(row[ALIGNED]) for row in metrics)
    name = ALIGNED if at_one_position else "ap_overall"
    known = [row for row in metrics if not math.isnan(row[f"{name}_se"])]
    large = [row for row in known if abs(row[f"{name}_bias"]) > row[f"{name}_se"] / 2]
    if not large:
        return []
    text = (
        f"The bias of {name} is larger than half its standard error in {len(large):,} of "
        f"{len(known):,} heads. Use corrected values (value - bias), or capture more queries."
    )
    return [RunWarning(LARGE_BIAS, text, len(large), [], None)]


def attended_warnings(
    manifest: DumpManifest | None, metrics: Sequence[dict[str, Any]]
) -> list[RunWarning]:
    """Warnings about attended plasticity of captured keys only, and of few queries or pairs."""
    known = [row for row in metrics if not math.isnan(row["ap_attended"])]
    return [*_from_queries(manifest, known), *_few_later_queries(known)]


def _from_queries(
    manifest: DumpManifest | None, known: Sequence[dict[str, Any]]
) -> list[RunWarning]:
    """A note about heads whose keys were not drawn by attention, unless all keys are there."""
    heads = sum(not math.isnan(row["n_later_queries"]) for row in known)
    kept = keep_probabilities(manifest, "k", [0, _LATE]).values
    if not heads or (kept is not None and kept.min() == 1):
        return []
    text = (
        f"Attended plasticity of {heads:,} of {len(known):,} heads comes from captured queries and "
        "keys: the dump has no keys drawn by attention. Keys with much attention are rarely "
        "captured, so values can be several hundredths off, mostly too high, and heads can be in "
        "the wrong order. Capture the dump again."
    )
    return [RunWarning(ATTENDED_FROM_QUERIES, text, heads, [], None)]


def _few_later_queries(known: Sequence[dict[str, Any]]) -> list[RunWarning]:
    """A warning about heads whose attended plasticity comes from few queries or few pairs."""
    few = [
        row
        for row in known
        if row["n_later_queries"] < FEW_LATER_QUERIES
        or row["ap_attended_ess"] < FEW_EFFECTIVE_PAIRS
    ]
    if not few:
        return []
    text = (
        f"Attended plasticity of {len(few):,} of {len(known):,} heads rests on fewer than "
        f"{FEW_LATER_QUERIES} later queries per key or fewer than {FEW_EFFECTIVE_PAIRS} effective "
        "key pairs. It is unreliable there. Capture more texts, or more rows of every text."
    )
    return [RunWarning("few_later_queries", text, len(few), [], None)]


def selective_warnings(
    manifest: DumpManifest | None, heads: Sequence[tuple[int, int]]
) -> list[RunWarning]:
    """A note about layers in which the content of keys decides which keys a query sees."""
    entries = (manifest.layers if manifest else None) or []
    selective = {entry.get("layer") for entry in entries if entry.get("selective") is True}
    concerned = [layer for layer, _ in heads if layer in selective]
    if not concerned:
        return []
    layers = sorted(set(concerned))
    which = f"layer{'s' * (len(layers) > 1)} {index_ranges(layers)}"
    text = (
        f"In {which} the content of keys decides which keys a query sees. Plasticity there "
        "compares any two earlier keys, also keys that the layer hides from the query."
    )
    return [RunWarning("selective_layers", text, len(concerned), [], None)]


def weight_warnings(
    manifest: DumpManifest | None, metrics: Sequence[dict[str, Any]]
) -> list[RunWarning]:
    """A note if the sampler of the dump is not known, so that means count captured rows."""
    known = (any(not math.isnan(row[name]) for name in TOKEN_MEANS) for row in metrics)
    concerned, reason = sum(known), why_no_weights(manifest)
    if not concerned or reason is None:
        return []
    text = (
        f"The probability with which tokens were kept is not known: {reason}. Means over tokens "
        "give every captured row the same weight, so they depend on how positions were sampled."
    )
    return [RunWarning("weights_unknown", text, concerned, [], None)]


def unnamed_texts(problem: str, texts: int) -> str:
    """The warning about an `examples.parquet` that does not name all texts of the dump."""
    return (
        f"{problem}. The groups of texts, which give the standard errors, are made from the "
        f"{count(texts, 'text')} found in the heads. Runs of this dump cannot be compared text by "
        "text."
    )


def text_warnings(texts: dict[str, Any] | None, heads: int) -> list[RunWarning]:
    """A warning if `examples.parquet` does not name all texts; `texts` as in run.json."""
    if texts is None or "problem" not in texts:
        return []
    text = unnamed_texts(texts["problem"], texts["count"])
    return [RunWarning("texts_not_named", text, heads, [], None)]


def _warning(kind: Literal["few_queries", "few_texts"], text: str, small: _LowCounts) -> RunWarning:
    return RunWarning(kind, text, small.heads, sorted(small.buckets), small.fewest)
