"""Warnings about the results of a run, one sentence per kind for the whole run.

There are warnings about bins with few queries or texts, about values without errors, about layers
that select keys by content (from `dump.json`), about texts that `examples.parquet` does not name,
and about a sampler that is not known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from attention_plasticity.estimate.quantity import MIN_GROUPS
from attention_plasticity.measure.grid import FEWEST_TEXTS
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.metrics import ALIGNED, ATTENDED, TOKEN_MEANS
from attention_plasticity.read.bins import FEW_QUERIES
from attention_plasticity.read.layer import NO_COLUMNS
from attention_plasticity.read.weights import why_no_weights
from qk_dump.buckets import BucketGeometry
from qk_dump.manifest import DumpManifest
from qk_toolkit.formatting import count, index_ranges, index_runs

_MOST_RANGES = 6
_NOTES = (
    "texts_unknown",
    "selective_layers",
    "attended_unknown",
    "aligned_unknown",
    "weights_unknown",
)
"""Kinds of warnings about results that may still be correct."""


@dataclass(frozen=True)
class RunWarning:
    """A warning about the results of a run, and the heads that it concerns."""

    kind: Literal[
        "few_queries",
        "few_texts",
        "no_errors",
        "texts_unknown",
        "texts_not_named",
        "selective_layers",
        "attended_unknown",
        "aligned_unknown",
        "weights_unknown",
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
    """Bins or query buckets with fewer queries or texts than the limit, over all heads."""

    name: str  # of a bin in messages
    limit: int
    heads: int = 0
    buckets: set[int] = field(default_factory=set)
    fewest: int | None = None
    most: int = 0  # in any bin

    def add(
        self, buckets: Sequence[int], sizes: Sequence[float], known: Collection[int] = ()
    ) -> None:
        """Add the cells of a head; a bin has several of them. The bins `known` are never small."""
        of_bucket = dict(zip(buckets, map(int, sizes), strict=True))
        self.most = max([self.most, *of_bucket.values()])
        small = {
            bucket: size
            for bucket, size in of_bucket.items()
            if size < self.limit and bucket not in known
        }
        if small:
            self.heads += 1
            self.buckets |= small.keys()
            fewest = min(small.values())
            self.fewest = fewest if self.fewest is None else min(fewest, self.fewest)

    def where(self, geometry: BucketGeometry | None, heads: int) -> str:
        """The small bins in words, with their positions."""
        runs = index_runs(self.buckets)[:_MOST_RANGES]
        named = [bucket for bucket in self.buckets if bucket <= runs[-1][1]]
        more = len(self.buckets) - len(named)
        text = f"{self.name}{'s' * (len(self.buckets) > 1)} {index_ranges(named)}"
        if more:
            text += f" and {more} more"
        if geometry is not None:
            starts = geometry.starts([first for first, _ in runs])
            ends = geometry.ends([last for _, last in runs])
            spans = (f"{start:,}-{end:,}" for start, end in zip(starts, ends, strict=True))
            text += f" (positions {', '.join(spans)})"
        return f"{text}, in {self.heads:,} of {heads:,} heads"

    def warning(self, kind: Literal["few_queries", "few_texts"], text: str) -> RunWarning:
        """A warning about the small bins."""
        return RunWarning(kind, text, self.heads, sorted(self.buckets), self.fewest)


class SampleSizes:
    """Numbers of queries and texts per bin over all heads of a run, and values without errors.

    The queries of a head without bins are counted in its query buckets.
    """

    def __init__(self, *, single_example: bool = False, equal_texts: bool = False) -> None:
        self._single_example = single_example
        self._equal_texts = equal_texts
        self._heads = 0
        self._no_texts = 0  # heads
        self._few_groups = 0  # heads
        self._queries = _LowCounts("bin", FEW_QUERIES)
        self._texts = _LowCounts("bin", FEWEST_TEXTS)
        self._bucket_queries = _LowCounts("query bucket", FEW_QUERIES)
        self._problems: dict[str, Counter[str]] = {ATTENDED: Counter(), ALIGNED: Counter()}

    def add(self, result: HeadResult) -> None:
        """Count the bins of a head, or its query buckets if it has no bins."""
        self._heads += 1
        groups = result.metrics["n_text_groups"]
        self._no_texts += math.isnan(groups)
        self._few_groups += groups < MIN_GROUPS  # false for NaN
        reasons = result.missing.get("head_metrics", {})
        for name, heads in self._problems.items():
            if name in reasons and (name == ALIGNED or reasons.get("attn_entropy") != NO_COLUMNS):
                heads[reasons[name]] += 1
        bins, buckets = result.tables.get("bins"), result.tables.get("bucket_plasticity")
        if bins is not None and bins["q_bin"]:
            self._queries.add(bins["q_bin"], bins["n_queries"])
            if not math.isnan(groups):
                values = zip(bins["q_bin"], bins["plasticity"], strict=True)
                known = {number for number, value in values if not math.isnan(value)}
                self._texts.add(bins["q_bin"], bins["n_texts"], known)
        elif buckets is not None:
            self._bucket_queries.add(buckets["q_bucket"], buckets["n_queries"])

    def warnings(
        self, geometry: BucketGeometry | None, bin_size: int | None = None
    ) -> list[RunWarning]:
        """Warnings about the counted heads."""
        bins = None if bin_size is None else BucketGeometry("uniform", bin_size)
        found = [*self._small(bins, geometry), *self._without_errors()]
        of_kind: tuple[tuple[Literal["attended_unknown", "aligned_unknown"], str, str], ...] = (
            ("attended_unknown", ATTENDED, "Attended plasticity"),
            ("aligned_unknown", ALIGNED, "Plasticity at one position"),
        )
        for kind, name, words in of_kind:
            for reason, heads in self._problems[name].items():
                text = f"{words} is not known in {heads:,} of {self._heads:,} heads: {reason}."
                found.append(RunWarning(kind, text, heads, [], None))
        return found

    def _small(
        self, bins: BucketGeometry | None, geometry: BucketGeometry | None
    ) -> Iterator[RunWarning]:
        """Warnings about bins and buckets with few queries or texts."""
        queries, texts, in_buckets = self._queries, self._texts, self._bucket_queries
        if queries.heads:
            text = (
                f"Fewer than {FEW_QUERIES} queries in {queries.where(bins, self._heads)}; the "
                f"smallest bin has {queries.fewest}. Plasticity at one position is unreliable "
                "there. Capture more texts, or set a larger bin_size."
            )
            yield queries.warning("few_queries", text)
        if in_buckets.heads:
            text = (
                f"Fewer than {FEW_QUERIES} queries in {in_buckets.where(geometry, self._heads)}; "
                f"the smallest bucket has {in_buckets.fewest}. Plasticity over a bucket is "
                "unreliable there. Capture more texts."
            )
            yield in_buckets.warning("few_queries", text)
        if texts.heads:
            left_out = "These bins are" if len(texts.buckets) > 1 else "This bin is"
            remedy = ", or set equal_texts to use the same texts everywhere"
            nothing_changes = self._equal_texts or texts.most == texts.fewest
            text = (
                f"Fewer than {texts.limit} texts in {texts.where(bins, self._heads)}; the smallest "
                f"number is {texts.fewest}. {left_out} left out of means and figures. Capture "
                f"more texts of this length{'' if nothing_changes else remedy}."
            )
            yield texts.warning("few_texts", text)

    def _without_errors(self) -> Iterator[RunWarning]:
        """Why values have no standard errors."""
        if self._few_groups:
            heads = f"{self._few_groups:,} of {self._heads:,} heads"
            text = (
                f"The rows of {heads} come from fewer than {MIN_GROUPS} groups of texts. Values "
                "have no standard errors there. Capture more texts."
            )
            yield RunWarning("no_errors", text, self._few_groups, [], None)
        if self._no_texts:
            why = f" in {self._no_texts:,} of {self._heads:,} heads: the queries have no usable "
            why = ": single_example is set" if self._single_example else f"{why}example_id"
            text = f"Standard errors are not known, nor the numbers of texts{why}."
            yield RunWarning("texts_unknown", text, self._no_texts, [], None)


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
