"""Warnings about the results of a run, one sentence per kind for the whole run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attention_plasticity.estimate.quantity import MIN_GROUPS
from attention_plasticity.measure.grid import FEWEST_TEXTS
from attention_plasticity.measure.result import Columns, HeadResult
from attention_plasticity.metrics import ALIGNED, ATTENDED, LEFT_OUT, TOKEN_MEANS
from attention_plasticity.read.bins import FEW_QUERIES
from attention_plasticity.read.rows import why_no_weights
from qk_dump.heads import TOKENS_FILE
from qk_dump.manifest import DumpManifest
from qk_dump.positions import BucketGeometry
from qk_toolkit.formatting import count, index_ranges, index_runs

ORIGINAL_LEFT_OUT = (
    f"{LEFT_OUT}: plasticity over a bucket, R² of position and residuals are left "
    "out, and so are the tables of buckets and of dimensions."
)
_MOST_RANGES = 6
_UNKNOWN = {
    ATTENDED: ("attended_unknown", "Attended plasticity"),
    ALIGNED: ("aligned_unknown", "RoPE-aligned plasticity"),
}
"""Columns whose missing values are worth a note: kind of the note, and name in words."""


@dataclass(frozen=True)
class RunWarning:
    """A warning about the results of a run, and the number of heads that it concerns."""

    kind: str
    text: str
    heads: int
    reasons: list[str] = field(default_factory=list)  # of missing values that it explains


def sizes_of(result: HeadResult) -> dict[str, Any]:
    """The bins of a head with fewer queries or texts than the limits, and their numbers.

    A head without bins has query buckets.
    """
    bins, buckets = result.tables.get("bins"), result.tables.get("bucket_plasticity")
    if bins is None or not len(bins["q_bin"]):
        found = {} if buckets is None else _small(buckets, "q_bucket", "n_queries", FEW_QUERIES)
        return {"in_bins": False, "few_queries": list(found.items()), "few_texts": []}
    texts: dict[int, int] = {}
    if not math.isnan(result.metrics["n_text_groups"]):
        values = zip(bins["q_bin"], bins["plasticity"], strict=True)
        known = {number for number, value in values if not math.isnan(value)}
        texts = _small(bins, "q_bin", "n_texts", FEWEST_TEXTS)
        texts = {number: size for number, size in texts.items() if number not in known}
    queries = _small(bins, "q_bin", "n_queries", FEW_QUERIES)
    return {
        "in_bins": True,
        "few_queries": list(queries.items()),
        "few_texts": list(texts.items()),
    }


def _small(columns: Columns, name: str, size: str, limit: int) -> dict[int, int]:
    """Bins below the limit; a bin has several cells."""
    sizes = dict(zip(columns[name], columns[size], strict=True))
    return {int(number): int(one) for number, one in sizes.items() if one < limit}


class _LowCounts:
    """Bins or query buckets with fewer queries or texts than the limit, over all heads."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name  # of a bin in messages
        self.limit = limit
        self.heads = 0
        self.smallest: dict[int, int] = {}  # by bin

    def add(self, small: Sequence[tuple[int, int]]) -> None:
        """Add the small bins of a head."""
        self.heads += bool(small)
        for number, size in small:
            self.smallest[number] = min(size, self.smallest.get(number, size))

    def words(self, geometry: BucketGeometry | None, heads: int) -> str:
        """The small bins in words, with their positions, and the size of the smallest."""
        runs = index_runs(self.smallest)[:_MOST_RANGES]
        named = [number for number in self.smallest if number <= runs[-1][1]]
        more = len(self.smallest) - len(named)
        text = f"{self.name}{'s' * (len(self.smallest) > 1)} {index_ranges(named)}"
        if more:
            text += f" and {more} more"
        if geometry is not None:
            starts = geometry.starts([first for first, _ in runs])
            ends = geometry.ends([last for _, last in runs])
            spans = (f"{start:,}-{end:,}" for start, end in zip(starts, ends, strict=True))
            text += f" (positions {', '.join(spans)})"
        smallest = min(self.smallest.values())
        return f"{text}, in {self.heads:,} of {heads:,} heads; the smallest number is {smallest}"


class SampleSizes:
    """Numbers of queries and texts per bin over all heads of a run, and values without errors.

    The queries of a head without bins are counted in its query buckets.
    """

    def __init__(self, *, single_example: bool = False) -> None:
        self._single_example = single_example
        self._heads = 0
        self._no_texts = 0  # heads
        self._few_groups = 0  # heads
        self._queries = _LowCounts("bin", FEW_QUERIES)
        self._texts = _LowCounts("bin", FEWEST_TEXTS)
        self._bucket_queries = _LowCounts("query bucket", FEW_QUERIES)
        self._unknown: Counter[tuple[str, str]] = Counter()  # heads by column and reason

    def add(
        self, metrics: Mapping[str, Any], missing: Mapping[str, str], sizes: Mapping[str, Any]
    ) -> None:
        """Add a head: its row, the reasons of missing values of it, and `sizes_of` it."""
        self._heads += 1
        groups = metrics["n_text_groups"]
        self._no_texts += math.isnan(groups)
        self._few_groups += groups < MIN_GROUPS  # false for NaN
        has_attention = not math.isnan(metrics["attn_entropy"])
        for name, reason in missing.items():
            if name == ALIGNED or (name == ATTENDED and has_attention):
                self._unknown[name, reason] += 1
        queries = self._queries if sizes["in_bins"] else self._bucket_queries
        queries.add(sizes["few_queries"])
        self._texts.add(sizes["few_texts"])

    def warnings(
        self, geometry: BucketGeometry | None, bin_size: int | None = None
    ) -> Iterator[RunWarning]:
        """Warnings about the counted heads."""
        bins = None if bin_size is None else BucketGeometry("uniform", bin_size)
        unreliable = "is unreliable there. Capture more texts"
        for kind, low, where, advice in (
            (
                *("few_queries", self._queries, bins),
                f"RoPE-aligned plasticity {unreliable}, or set a larger bin_size.",
            ),
            (
                *("few_queries", self._bucket_queries, geometry),
                f"Plasticity over a bucket {unreliable}.",
            ),
            (
                *("few_texts", self._texts, bins),
                "Means and figures have no values there. Capture more texts of this length.",
            ),
        ):
            if low.heads:
                found = low.words(where, self._heads)
                text = f"Fewer than {low.limit} {kind.removeprefix('few_')} in {found}. {advice}"
                yield RunWarning(kind, text, low.heads)
        yield from self._without_errors()
        for (name, reason), heads in self._unknown.items():
            kind, words = _UNKNOWN[name]
            text = f"{words} is not known in {heads:,} of {self._heads:,} heads: {reason}."
            yield RunWarning(kind, text, heads, [reason])

    def _without_errors(self) -> Iterator[RunWarning]:
        """Why values have no standard errors."""
        if self._few_groups:
            heads = f"{self._few_groups:,} of {self._heads:,} heads"
            text = (
                f"The rows of {heads} come from fewer than {MIN_GROUPS} groups of texts. Values "
                "have no standard errors there. Capture more texts."
            )
            yield RunWarning("no_errors", text, self._few_groups)
        if self._no_texts:
            why = f" in {self._no_texts:,} of {self._heads:,} heads: the queries have no usable "
            why = ": single_example is set" if self._single_example else f"{why}example_id"
            text = f"Standard errors are not known, nor the numbers of texts{why}."
            yield RunWarning("texts_unknown", text, self._no_texts)


def warnings_of_dump(
    manifest: DumpManifest | None, texts: dict[str, Any] | None, metrics: Sequence[dict[str, Any]]
) -> Iterator[RunWarning]:
    """Warnings about the dump. `metrics` has a row per head; `texts` are as in run.json."""
    if texts is not None and "problem" in texts:
        text = (
            f"{texts['problem']}. The groups of texts, which give the standard errors, are made "
            f"from the {count(texts['count'], 'text')} found in the heads. Runs of this dump "
            "cannot be compared text by text."
        )
        yield RunWarning("texts_not_named", text, len(metrics))
    records = (manifest.layers if manifest else None) or []
    selective = {record.layer for record in records if record.selective}
    layers = [row["layer"] for row in metrics if row["layer"] in selective]
    if layers:
        which = f"layer{'s' * (len(set(layers)) > 1)} {index_ranges(set(layers))}"
        text = (
            f"In {which} the content of keys decides which keys a query sees. Plasticity there "
            "compares any two earlier keys, also keys that the layer hides from the query."
        )
        yield RunWarning("selective_layers", text, len(layers))
    reason = why_no_weights(manifest)
    known = sum(any(not math.isnan(row[name]) for name in TOKEN_MEANS) for row in metrics)
    if known and reason is not None:
        text = (
            f"The probability with which tokens were kept is not known: {reason}. Means over "
            "tokens give every captured row the same weight, so they depend on how positions were "
            "sampled."
        )
        yield RunWarning("weights_unknown", text, known)


def warnings_of_tokens(unknown: Sequence[int]) -> Iterator[RunWarning]:
    """A warning about token ids without a text; `unknown` are their numbers by head."""
    known = [number for number in unknown if number]
    if known:
        text = (
            f"{TOKENS_FILE} does not have {count(max(known), 'token id')} of the rows of a head; "
            "their words are empty. Copy the file of the same capture."
        )
        yield RunWarning("unknown_tokens", text, len(known))
