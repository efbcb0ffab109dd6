"""Analysis of one key head and its query heads: rows of the tables.

Steps: read, orientation (signs), regression on position, rotation, residuals and their normality,
attention of the keys, query model per bucket, key pairs, plasticity, plasticity at one position,
means of attention, position before RoPE, rotary bands, geometry of the drift, roles and words,
counts for the table of key heads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from attention_plasticity.config import FIRST_PAIRS, RunnerConfig
from attention_plasticity.head.aligned import (
    BinnedHead,
    aligned_parts,
    aligned_plasticity,
    binned_head,
)
from attention_plasticity.head.aligned_columns import (
    add_aligned,
    bin_columns,
    bin_influences,
    missing_bins,
)
from attention_plasticity.head.attended import AttendedPlasticity, add_attended, attended_plasticity
from attention_plasticity.head.bands import add_kernel, head_bands
from attention_plasticity.head.drift_geometry import head_drift
from attention_plasticity.head.key_head import KeyHeadPairs
from attention_plasticity.head.key_pool import AttendedHead, KeyPool, attended_keys, read_pool
from attention_plasticity.head.layer import SINGLE_EXAMPLE, before_rope
from attention_plasticity.head.layout import head_layout
from attention_plasticity.head.plasticity import head_plasticity, parts_of_pairs, variance_parts
from attention_plasticity.head.plasticity_columns import (
    add_plasticity,
    bucket_columns,
    distance_columns,
    influence_columns,
    missing_cells,
)
from attention_plasticity.head.position_columns import (
    HeadAttention,
    add_attention,
    add_drift,
    add_normality,
    add_position,
    component_columns,
)
from attention_plasticity.head.queries import RotatedQueries
from attention_plasticity.head.repeated import with_repeated
from attention_plasticity.head.result import Failure, HeadResult
from attention_plasticity.head.role_columns import (
    role_columns,
    role_influences,
    role_queries,
    scores_on_repeated_tokens,
    word_columns,
)
from attention_plasticity.head.rows import KeyHead, common_window, read_queries
from attention_plasticity.head.texts import DumpTexts
from attention_plasticity.head.token_weights import TokenWeights, token_weights, unknown_weights
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.head.values import HeadValues
from attention_plasticity.metrics import FULL_ATTENTION, SLIDING_ATTENTION
from attention_plasticity.numeric.drift import Drift, drift
from attention_plasticity.numeric.errors.text_groups import TextGroups
from attention_plasticity.numeric.errors.variance_parts import VarianceParts
from attention_plasticity.numeric.role_scores import role_scores
from qk_dump.layout import Dump, HeadId
from qk_dump.reader import HeadRows
from qk_dump.rotary_file import with_rotary
from qk_dump.source import open_dump
from qk_toolkit.arrays import Ints
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError, DumpError, HeadError, ToolkitError
from qk_toolkit.formatting import index_ranges


def analyze_head(
    layer: int,
    q_head: int,
    k_head: int | None = None,
    dump: Dump | str | os.PathLike[str] | None = None,
    config: RunnerConfig | None = None,
) -> HeadResult:
    """Analyse one query head with its key head. Raises a `ToolkitError` for bad input.

    Without `k_head`, the key head is the one that the query head uses in the model.

    Returns:
        Rows of the tables. `metrics` is one row of head_metrics.csv, by column.
            `bucket_plasticity` has one row per query bucket and key bucket, `component_weights`
            one per dimension.

    Examples:
        >>> from attention_plasticity import analyze_head, open_sample
        >>> result = analyze_head(layer=0, q_head=4, dump=open_sample())
        >>> result.k_head  # query heads 3, 4 and 5 share key head 1
        1
        >>> len(result.component_weights)  # one row per dimension
        64
        >>> 0 < result.metrics["ap_overall"] < 1
        True
    """
    if dump is None:
        raise ConfigError("dump: is missing; give a dump, or the path of its folder")
    config = config or RunnerConfig()
    dump = with_repeated(dump if isinstance(dump, Dump) else open_dump(dump), config.repeated)
    dump = with_rotary(dump, config.rotary)
    if (layer, q_head) not in dump.query_heads:
        heads = [head for other, head in dump.query_heads if other == layer]
        has = f"query heads {index_ranges(heads)}" if heads else "no query heads"
        raise DumpError(
            f"{dump.path}: query head {q_head} of layer {layer} is not in the dump; the layer has "
            f"{has}"
        )
    if k_head is None:
        k_head = head_layout(dump, config).key_head_of(q_head)
    keys = KeyHead.read(dump, layer, k_head, config)
    pool = read_pool(dump, layer, k_head, keys, config)
    pairs = KeyHeadPairs(keys, pool, config, pair_seed(config, layer, k_head))
    return _analyze_query_head(dump, layer, q_head, k_head, keys, pool, pairs, config)


def analyze_group(
    dump: Dump,
    layer: int,
    k_head: int,
    q_heads: Sequence[int],
    config: RunnerConfig,
    texts: DumpTexts | None = None,
) -> Iterator[HeadResult | Failure]:
    """Analyse the query heads of one key head. A head that fails does not stop the others.

    `texts` are the texts of the whole run; without them, they are read from the dump.
    """
    try:
        keys = KeyHead.read(dump, layer, k_head, config, texts)
        pool = read_pool(dump, layer, k_head, keys, config)
    except ToolkitError as error:
        show_traceback(error)
        yield from (Failure(layer, q_head, k_head, str(error)) for q_head in q_heads)
        return
    pairs = KeyHeadPairs(keys, pool, config, pair_seed(config, layer, k_head))
    for q_head in q_heads:
        try:
            yield _analyze_query_head(dump, layer, q_head, k_head, keys, pool, pairs, config)
        except ToolkitError as error:
            show_traceback(error)
            yield Failure(layer, q_head, k_head, str(error))


def _analyze_query_head(
    dump: Dump,
    layer: int,
    q_head: int,
    k_head: int,
    keys: KeyHead,
    pool: KeyPool | None,
    pairs: KeyHeadPairs,
    config: RunnerConfig,
) -> HeadResult:
    head = HeadId(layer, q_head, "q")
    rows, exponent = read_queries(dump, head, keys, config)
    window = common_window(rows, keys.rows, head.folder)
    weights = token_weights(dump, "q", rows)
    result = analyze_rows(
        layer, q_head, k_head, rows, keys, config, window, exponent, weights, pool
    )
    of_queries = pair_seed(config, layer, q_head)
    result = replace(result, key_head=pairs.counts(rows, weights, window, of_queries))
    found = role_queries(
        rows, weights, _groups(rows, keys, config), window, chunked=keys.logits.chunked
    )
    if found is None:
        return result
    queries, known = found
    scores = role_scores(queries, config.distant_from)
    further = role_influences(scores)
    return replace(
        result,
        influences={name: [*own, *further[name]] for name, own in result.influences.items()},
        roles=role_columns(queries, scores, scores_on_repeated_tokens(dump, layer, q_head)),
        words=word_columns(rows, queries, known, dump.token_texts),
    )


def pair_seed(config: RunnerConfig, layer: int, q_head: int) -> int:
    """Seed of the key pairs of a query head."""
    return config.seed + 10007 * layer + 379 * q_head


def analyze_rows(
    layer: int,
    q_head: int,
    k_head: int,
    rows: HeadRows,
    keys: KeyHead,
    config: RunnerConfig,
    window: int | None = None,
    exponent: int = 0,
    weights: TokenWeights | None = None,
    pool: KeyPool | None = None,
) -> HeadResult:
    """Analyse the queries `rows`, which were divided by two to the power `exponent`.

    `weights` are those of the queries in means over tokens; without them, every query has the same
    weight. `pool` has the keys of attended pairs.
    """
    weights = weights or unknown_weights(len(rows))
    no_errors = _why_no_errors(rows, config)
    values = HeadValues()
    values.add({"layer": layer, "q_head": q_head, "k_head": k_head})
    values.add({"n_q_tokens": len(rows), "n_k_tokens": len(keys.rows), "d_model": rows.width})
    values.add({"q_position_max": rows.position_max})
    values.add({"sliding_window": math.nan if window is None else window})
    own_type = FULL_ATTENTION if window is None else SLIDING_ATTENTION
    values.add({"layer_type": keys.layer_type or own_type})
    queries = RotatedQueries.of(rows, keys.signs)
    add_position(values, queries, exponent)
    add_normality(values, queries, config)
    own = attended_keys(
        rows, q_head, keys, pool, window, exponent, single_example=config.single_example
    )
    by_attention = _by_attention(layer, q_head, own, config)
    base = keys
    if by_attention is not None:
        keys = by_attention.keys
    seed = pair_seed(config, layer, q_head)
    attention_of_keys = None if by_attention is None else by_attention.attention
    binned = binned_head(rows, weights, keys, window, config, by_attention)
    parts = None
    if config.num_pairs_per_bucket == "auto":
        parts = aligned_parts(binned, seed, FIRST_PAIRS)
    plasticity, pairs = head_plasticity(
        queries, keys, window, config, seed, attention_of_keys, parts
    )
    aligned = aligned_plasticity(binned, seed, pairs)
    add_plasticity(values, plasticity, rows.position_max, no_errors)
    groups = _groups(rows, keys, config)
    attention = HeadAttention.of(rows, weights, groups, config.distant_from)
    add_attention(values, attention.means, no_errors)
    add_attended(values, _attended(binned, own, seed), no_errors)
    add_aligned(values, aligned, no_errors)
    of_queries = _drift(rows, weights, base, None if groups is None else keys.groups, binned)
    add_drift(values, of_queries, base, with_errors=groups is not None, why_no_errors=no_errors)
    of_group = pair_seed(config, layer, k_head)  # the same pairs for all query heads of a group
    one_text = config.single_example
    bands = head_bands(rows, weights, base, window, exponent, of_group, groups, one_text=one_text)
    add_kernel(values, bands, no_errors)
    most = config.points_per_head
    geometry = head_drift(rows, weights, base, exponent, groups, most, (seed, of_group))
    return HeadResult(
        layer=layer,
        q_head=q_head,
        k_head=k_head,
        metrics=values.values,
        buckets=bucket_columns(plasticity, keys, rows),
        components=component_columns(queries.fit),
        influences=influence_columns(
            plasticity, values.estimates, [*bin_influences(aligned), *bands.influences]
        ),
        distances=distance_columns(plasticity),
        attention=attention.buckets,
        bins=bin_columns(aligned, keys, rows),
        bands=bands.bands,
        kernel=bands.kernel,
        drift=geometry.row,
        points=geometry.points.columns,
        drift_influences=geometry.influences,
        missing=values.missing,
        missing_cells=missing_cells(plasticity, rows.example_id is not None, no_errors),
        missing_bins=missing_bins(aligned, rows.example_id is not None, no_errors),
        missing_drift=geometry.missing,
        missing_points=geometry.points.missing,
    )


def _why_no_errors(rows: HeadRows, config: RunnerConfig) -> str:
    """Why a head has no standard errors, if it has none."""
    if config.single_example:
        return SINGLE_EXAMPLE
    if rows.example_id is None:
        return "the queries have no usable example_id"
    return "error_bars is off"


def _by_attention(
    layer: int, q_head: int, own: AttendedHead | Unknown, config: RunnerConfig
) -> AttendedHead | None:
    """The keys with their attention if the settings demand attended pairs, else None.

    Raises a `HeadError` if they do and attention is not known.
    """
    if config.pair_sampling != "attended":
        return None
    if isinstance(own, Unknown):
        raise HeadError(
            f"{HeadId(layer, q_head, 'q').folder}: attended pairs cannot be drawn: {own.reason}. "
            "Use another pair_sampling, or capture the dump again."
        )
    return own


def _attended(
    binned: BinnedHead | Unknown, own: AttendedHead | Unknown, seed: int
) -> AttendedPlasticity | Unknown:
    """Attended plasticity, or the reason why it is not known."""
    if isinstance(own, Unknown):
        return own
    return binned if isinstance(binned, Unknown) else attended_plasticity(binned, own, seed)


def _drift(
    rows: HeadRows,
    weights: TokenWeights,
    keys: KeyHead,
    groups: TextGroups | None,
    binned: BinnedHead | Unknown,
) -> Drift | None:
    """How far the queries drift with position before RoPE; None if RoPE cannot be undone."""
    if isinstance(binned, BinnedHead) and keys.rotation.problem is None:
        return binned.queries.drift(keys.rotation, groups)
    vectors = before_rope(rows.vectors, rows.position, keys.rotation)  # (n, d)
    if vectors is None:
        return None
    group = None
    if groups is not None and rows.example_id is not None:
        group = groups.of(rows.example_id)
    return drift(rows.position, vectors, weights.weight, group)


def _groups(rows: HeadRows, keys: KeyHead, config: RunnerConfig) -> Ints | None:
    """Groups of the texts of the queries, for errors; None if there are no errors."""
    if rows.example_id is None or config.single_example or not config.error_bars:
        return None
    return keys.groups.of(rows.example_id)


def head_variance_parts(
    dump: Dump,
    layer: int,
    q_head: int,
    k_head: int,
    config: RunnerConfig,
    texts: DumpTexts | None = None,
    *,
    at_one_position: bool = False,
) -> VarianceParts | None:
    """Parts of the squared standard error of `ap_overall`; None if the error is not known.

    With `at_one_position` they are the parts of `ap_aligned`.
    """
    keys = KeyHead.read(dump, layer, k_head, config, texts)
    head = HeadId(layer, q_head, "q")
    rows, _ = read_queries(dump, head, keys, config)
    window = common_window(rows, keys.rows, head.folder)
    seed = pair_seed(config, layer, q_head)
    if at_one_position:
        weights = token_weights(dump, "q", rows)
        binned = binned_head(rows, weights, keys, window, config)
        return parts_of_pairs(partial(aligned_parts, binned, seed), config)
    queries = RotatedQueries.of(rows, keys.signs)
    return variance_parts(queries, keys, window, config, seed)
