"""Reading of the rows of a key head and its query heads, with the checks of the analysis.

The bins of positions of a run, from the lengths of its texts and the sampler of its dump.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.band_rows import BandRows
from attention_plasticity.head.drift_rows import DriftRows
from attention_plasticity.head.layer import (
    DEFAULT_LOGITS,
    NO_ROTATION,
    LayerLogits,
    LayerRotation,
    after_rope,
    before_rope,
    layer_type_of,
    logits_of,
    rotation_of,
)
from attention_plasticity.head.layout import require_buckets, require_covariances, require_pairs
from attention_plasticity.head.texts import (
    UNKNOWN_TEXTS,
    DumpTexts,
    text_lengths,
    text_list,
    texts_of_dump,
    texts_to_last_fifth,
)
from attention_plasticity.head.token_weights import TokenWeights, token_weights, unknown_weights
from attention_plasticity.numeric.bins import Bins, ExpectedQueries, bin_size, grid, texts_at
from attention_plasticity.numeric.distance_pairs import PlacedRows, SharedPairs
from attention_plasticity.numeric.drift import Drift, drift
from attention_plasticity.numeric.errors.text_groups import TextGroups
from attention_plasticity.numeric.key_pairs import KeyIndex
from attention_plasticity.numeric.position import orientation_from_keys
from attention_plasticity.numeric.scaling import (
    bucket_maxima,
    column_maxima,
    rescaled,
    row_maxima,
    scale_exponent,
    wider_than_float32,
)
from qk_dump.column_rules import rules_of
from qk_dump.keep_probabilities import keep_probabilities
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows, read_head
from qk_dump.remote import DumpPath
from qk_toolkit.arrays import Array, Ints, Vectors
from qk_toolkit.errors import DumpError, HeadError, ToolkitError

MIN_QUERIES = 3


@dataclass(frozen=True)
class KeyHead:
    """A key head, read and indexed once for all query heads of its group."""

    rows: HeadRows
    signs: Array  # (d,)
    index: KeyIndex
    all_texts: DumpTexts = UNKNOWN_TEXTS
    exponent: int = 0  # vectors were divided by two to this power
    logits: LayerLogits = DEFAULT_LOGITS
    layer_type: str | None = None  # as dump.json names it
    texts: Ints | None = None  # ids of the texts that are used; None: all
    rotation: LayerRotation = NO_ROTATION
    known_weights: TokenWeights | None = None  # None: the keys come from no dump

    @classmethod
    def read(
        cls,
        dump: Dump,
        layer: int,
        k_head: int,
        config: RunnerConfig,
        all_texts: DumpTexts | None = None,
        *,
        with_values: bool = False,
    ) -> KeyHead:
        """Read and index the keys of one head. In a run, `all_texts` are the texts of the run.

        With `with_values`, the lengths of values are read, too.
        """
        head = HeadId(layer, k_head, "k")
        if all_texts is None:
            all_texts = run_texts(dump, [layer], config)
        rows = _read(dump, head, config, all_texts, with_attention=with_values)
        texts = _equal_texts(all_texts, rows) if config.equal_texts else None
        if texts is not None:
            rows = _rows_of_texts(rows, texts, dump.folders[head])
        rows, exponent = in_range(rows, dump.folders[head])
        assert rows.example_id is not None
        index = KeyIndex(rows.position, rows.bucket, rows.example_id)
        per_bucket = config.most_pairs_per_bucket
        pairs = index.count(config.pair_sampling, per_bucket)
        require_pairs(pairs, per_bucket, len(index.buckets), dump.folders[head])
        signs = orientation_from_keys(rows.bucket, rows.vectors)
        facts = (logits_of(dump, layer), layer_type_of(dump, layer))
        rotation = rotation_of(dump, layer).for_width(rows.width)
        weights = token_weights(dump, "k", rows)
        return cls(rows, signs, index, all_texts, exponent, *facts, texts, rotation, weights)

    @cached_property
    def bin_index(self) -> KeyIndex:
        """The keys indexed by their bins, which must be known."""
        assert self.all_texts.bins is not None
        assert self.rows.example_id is not None
        bins = self.all_texts.bins.of(self.rows.position)
        return KeyIndex(self.rows.position, bins, self.rows.example_id)

    @cached_property
    def vectors_after_rope(self) -> Vectors:
        """(n, d) the keys as they enter the attention of the model."""
        return after_rope(self.rows.vectors, self.rows.position, self.rotation)

    @cached_property
    def weights(self) -> TokenWeights:
        """The probabilities with which the keys were kept, and their weights."""
        return self.known_weights or unknown_weights(len(self.rows))

    @cached_property
    def drift(self) -> Drift | None:
        """How far the keys drift with position before RoPE; None if RoPE cannot be undone."""
        vectors = before_rope(self.rows.vectors, self.rows.position, self.rotation)
        if vectors is None:
            return None
        assert self.rows.example_id is not None
        groups = self.groups.of(self.rows.example_id)
        return drift(self.rows.position, vectors, self.weights.weight, groups)

    @cached_property
    def band_rows(self) -> BandRows:
        """The keys with their dimensions in rotary bands; the rotary record must be known."""
        assert self.rows.example_id is not None
        groups = self.groups.of(self.rows.example_id)
        rows, weight = self.rows, self.weights.weight
        return BandRows.of(rows.vectors, rows.position, self.rotation, weight, groups)

    @cached_property
    def drift_rows(self) -> DriftRows:
        """The keys after and before RoPE, for the geometry of their drift."""
        assert self.rows.example_id is not None
        groups = self.groups.of(self.rows.example_id)
        rows, weight = self.rows, self.weights.weight
        return DriftRows.of(rows.vectors, rows.position, self.rotation, weight, groups)

    @cached_property
    def pairs_with_queries(self) -> SharedPairs:
        """Pairs of a query and an earlier key, for all query heads of the group."""
        rows = self.rows
        assert rows.example_id is not None
        return SharedPairs(PlacedRows(rows.position, rows.example_id, self.weights.weight))

    @property
    def groups(self) -> TextGroups:
        """The group of every text."""
        return self.all_texts.groups


def run_texts(
    dump: Dump,
    layers: Iterable[int],
    config: RunnerConfig,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> DumpTexts:
    """The texts and bins of a dump for a run. Without standard errors, groups are not needed."""
    if config.single_example or not (config.error_bars or config.equal_texts):
        texts = DumpTexts(listed=text_list(dump))
    else:
        texts = texts_of_dump(dump, layers, equal_texts=config.equal_texts, show=show)
    return replace(texts, bins=bins_of_dump(dump, config))


def read_queries(
    dump: Dump, head: HeadId, keys: KeyHead, config: RunnerConfig
) -> tuple[HeadRows, int]:
    """The queries, and the exponent of the power of two by which they were divided."""
    queries = _read(dump, head, config, keys.all_texts, with_attention=True)
    if keys.texts is not None:
        queries = _rows_of_texts(queries, keys.texts, dump.folders[head])
    if len(queries) < MIN_QUERIES:
        raise HeadError(
            f"{dump.folders[head]}: has {len(queries)} queries; a regression on position needs "
            f"{MIN_QUERIES} or more. Capture more tokens."
        )
    if queries.width != keys.rows.width:
        raise DumpError(
            f"{dump.folders[head]}: queries have {queries.width} dimensions, "
            f"their keys have {keys.rows.width}. Use files of one model."
        )
    return in_range(queries, dump.folders[head], queries=True)


def common_window(queries: HeadRows, keys: HeadRows, name: str) -> int | None:
    """The sliding window of a head. Raises a `DumpError` if queries and keys contradict."""
    if not (queries.window_recorded and keys.window_recorded):
        return queries.sliding_window if queries.window_recorded else keys.sliding_window
    if queries.sliding_window != keys.sliding_window:
        raise DumpError(
            f"{name}: mixes sliding_window values: queries have "
            f"{queries.sliding_window or 'null'}, keys have {keys.sliding_window or 'null'}"
        )
    return queries.sliding_window


def _read(
    dump: Dump, head: HeadId, config: RunnerConfig, texts: DumpTexts, *, with_attention: bool
) -> HeadRows:
    files = dump.require_files(head)
    rows = read_head(
        files,
        max_rows=config.max_tokens_per_head,
        seed=config.seed,
        with_examples=head.kind == "k" or (False if config.single_example else "if present"),
        single_example=config.single_example,
        rules=rules_of(dump, head.layer),
        with_attention=with_attention,
        with_tokens=head.kind == "q",
        with_received=head.kind == "k" and not config.single_example,
    )
    if rows.example_id is not None and not config.single_example:
        texts.require(rows.example_id, dump.folders[head])
    buckets = len(np.unique(rows.bucket))
    require_buckets(buckets, dump.folders[head])
    if head.kind == "q":
        require_covariances(buckets, rows.width, dump.folders[head])
    return rows


def _equal_texts(all_texts: DumpTexts, keys: HeadRows) -> Ints:
    """Ids of the texts that reach the last fifth of the longest text.

    Their lengths are in `examples.parquet`. Without them, the positions of the keys are used.
    """
    assert keys.example_id is not None
    if all_texts.long is not None:
        return all_texts.long
    return texts_to_last_fifth(keys.example_id, keys.position)


def _rows_of_texts(rows: HeadRows, texts: Ints, folder: DumpPath) -> HeadRows:
    if rows.example_id is None:
        raise HeadError(f"{folder}: equal_texts needs queries with example_id. Leave it out.")
    found = rows.of_texts(texts)
    if not len(found):
        raise HeadError(
            f"{folder}: has no rows of texts that reach the last fifth. Leave equal_texts out."
        )
    return found


def in_range(rows: HeadRows, folder: DumpPath, *, queries: bool = False) -> tuple[HeadRows, int]:
    """The rows with vectors scaled by a power of two if needed, and its exponent.

    After scaling, the squares of every query dimension, query bucket and key fit into float64.
    """
    X = rows.vectors
    if not wider_than_float32(X):
        return rows, 0
    maxima = np.r_[column_maxima(X), bucket_maxima(X, rows.bucket)] if queries else row_maxima(X)
    try:
        exponent = scale_exponent(maxima)
    except ValueError as error:
        raise HeadError(f"{folder}: {error}. Capture the head again.") from error
    return replace(rows, vectors=rescaled(X, exponent)), exponent


def bins_of_dump(dump: Dump, config: RunnerConfig) -> Bins | None:
    """The bins of all heads of a run. They do not depend on the heads that are analysed.

    The lengths of texts are in `examples.parquet`, and the sampler is in `dump.json`. If one of
    them is missing, the rows of the first query head are used; None if no query head can be read.
    """
    lengths = text_lengths(dump, equal_texts=config.equal_texts)
    rows = None
    if lengths is None or not _sampler_is_known(dump):
        rows = _first_queries(dump, config)
        if rows is None:
            return None
    if lengths is None:
        assert rows is not None
        context = math.floor(rows.position_max) + 1
    else:
        context = int(lengths.max())
    if config.bin_size != "auto":
        return Bins(config.bin_size, context)
    if rows is None:
        assert lengths is not None
        expected = _expected(dump, lengths, context, config)
    else:
        expected = ExpectedQueries(rows.position, np.ones(len(rows)))
    return Bins(bin_size(context, expected), context)


def _sampler_is_known(dump: Dump) -> bool:
    return keep_probabilities(dump.manifest, "q", np.zeros(0)).values is not None


def _expected(dump: Dump, lengths: Ints, context: int, config: RunnerConfig) -> ExpectedQueries:
    """Expected numbers of queries of a head, from the lengths of texts and the sampler."""
    positions, step = grid(context)
    rate = keep_probabilities(dump.manifest, "q", positions).values  # (n,)
    assert rate is not None
    number = rate * texts_at(lengths, positions) * step
    number *= min(1.0, config.max_tokens_per_head / max(1.0, float(number.sum())))
    return ExpectedQueries(positions.astype(np.float64), number)


def _first_queries(dump: Dump, config: RunnerConfig) -> HeadRows | None:
    """The queries of the first head that can be read, of the texts that are used."""
    for layer, head in dump.query_heads:
        try:
            rows = read_head(
                dump.require_files(HeadId(layer, head, "q")),
                max_rows=config.max_tokens_per_head,
                seed=config.seed,
                with_examples="if present" if config.equal_texts else False,
            )
        except ToolkitError:
            continue  # the analysis of this head gives the reason
        if config.equal_texts and rows.example_id is not None:
            rows = rows.of_texts(texts_to_last_fifth(rows.example_id, rows.position))
        return rows
    return None
