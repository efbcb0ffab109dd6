"""Warnings about the results of a run, one sentence per kind for the whole run.

There are warnings about query buckets with few queries or texts, about layers that select keys by
content (from `dump.json`), about texts that `examples.parquet` does not name, about attended
plasticity, and about a sampler that is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        "few_queries_in_bins",
        "weights_unknown",
        "attended_from_queries",
    ]
    text: str
    heads: int  # number of heads
    buckets: list[int]  # query buckets, in any of these heads
    fewest: int | None  # queries or texts in the smallest bucket

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


class SampleSizes:
    """Numbers of queries and texts per query bucket, over all heads of a run."""

    def __init__(self, *, single_example: bool = False, equal_texts: bool = False) -> None:
        self._single_example = single_example
        self._equal_texts = equal_texts
        self._heads = 0
        self._unknown = 0
        self._queries = _LowCounts(FEW_QUERIES)
        self._texts = _LowCounts(FEW_TEXTS)
        self._bins = _LowCounts(FEW_QUERIES)
        self._attended_problems: dict[str, int] = {}
        self._aligned_problems: dict[str, int] = {}

    def warnings(self, geometry: BucketGeometry | None) -> list[RunWarning]:
        """Warnings about the counted heads."""
        found = []
        if self._queries.heads:
            where = self._where(self._queries, geometry)
            text = (
                f"Fewer than {FEW_QUERIES} queries in {where}; the smallest bucket has "
                f"{self._queries.fewest}. Plasticity there is unreliable. Capture more texts."
            )
            found.append(_warning("few_queries", text, self._queries))
        if self._bins.heads:
            text = (
                f"Fewer than {FEW_QUERIES} queries in bin{'s' * (len(self._bins.buckets) > 1)} "
                f"{index_ranges(self._bins.buckets)}, in {self._bins.heads:,} of {self._heads:,} "
                f"heads; the smallest bin has {self._bins.fewest}. Plasticity at one position is "
                "unreliable there. Capture more texts, or set a larger bin_size."
            )
            found.append(_warning("few_queries_in_bins", text, self._bins))
        if self._texts.heads:
            where = self._where(self._texts, geometry)
            text = (
                f"Fewer than {FEW_TEXTS} texts in {where}; the smallest number is "
                f"{self._texts.fewest}. Plasticity there depends on single texts. Capture more "
                f"texts of this length{self._other_remedy()}."
            )
            found.append(_warning("few_texts", text, self._texts))
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

    def add(self, result: HeadResult) -> None:
        """Count the buckets of a head."""
        columns = result.buckets
        self._heads += 1
        problem, no_columns = result.missing.get(ATTENDED), result.missing.get("attn_entropy")
        if problem is not None and no_columns != NO_COLUMNS:
            self._attended_problems[problem] = self._attended_problems.get(problem, 0) + 1
        problem = result.missing.get(ALIGNED)
        if problem is not None:
            self._aligned_problems[problem] = self._aligned_problems.get(problem, 0) + 1
        self._queries.add(dict(zip(columns["q_bucket"], columns["n_queries"], strict=True)))
        if result.bins:
            bins = result.bins
            self._bins.add(dict(zip(bins["q_bin"], bins["n_queries"], strict=True)))
        texts = dict(zip(columns["q_bucket"], columns["n_texts"], strict=True))
        if any(math.isnan(number) for number in texts.values()):
            self._unknown += 1
        else:
            self._texts.add(texts)

    def _where(self, small: _LowCounts, geometry: BucketGeometry | None) -> str:
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

    def _other_remedy(self) -> str:
        if self._equal_texts or self._texts.most == self._texts.fewest:  # nothing would change
            return ""
        return ", or set equal_texts to use the same texts in all buckets"

    def _why_unknown(self) -> str:
        text = "Standard errors and bias are not known, nor the number of texts per query bucket"
        if self._single_example:
            return f"{text}: single_example is set."
        return (
            f"{text} in {self._unknown:,} of {self._heads:,} heads: the queries have no usable "
            "example_id."
        )


def bias_warnings(metrics: Sequence[dict[str, Any]]) -> list[RunWarning]:
    """A warning about heads whose bias is large compared with their standard error."""
    known = [row for row in metrics if not math.isnan(row["ap_overall_se"])]
    large = [row for row in known if abs(row["ap_overall_bias"]) > row["ap_overall_se"] / 2]
    if not large:
        return []
    text = (
        f"The bias of ap_overall is larger than half its standard error in {len(large):,} of "
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


def _warning(
    kind: Literal["few_queries", "few_texts", "few_queries_in_bins"], text: str, small: _LowCounts
) -> RunWarning:
    return RunWarning(kind, text, small.heads, sorted(small.buckets), small.fewest)
