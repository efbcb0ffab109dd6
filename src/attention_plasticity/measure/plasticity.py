"""Plasticity in bins of positions: at one position, over a bin, and of attended pairs.

With RoPE, the same question at two positions is two vectors. At one position, every query of a bin
is de-rotated to its mean position. Over a bin, queries stay as captured. The same function scores
both; they differ in the frame of the queries and, for attended pairs, in the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.quantity import Quantity, Unknown, quantity
from attention_plasticity.estimate.sizes import FIFTHS, SINK_TOKENS
from attention_plasticity.estimate.visible import Visible
from attention_plasticity.measure.bin_pairs import (
    FEWEST_PAIRS,
    BinPairs,
    SortedKeys,
    attended_pairs,
    bin_pairs,
)
from attention_plasticity.measure.distance import (
    NO_COMMON_DISTANCE,
    Distances,
    distance_columns,
    drop_parts,
    near_profile,
)
from attention_plasticity.measure.found import Found
from attention_plasticity.measure.grid import Grid
from attention_plasticity.measure.result import Columns
from attention_plasticity.measure.scores import Scored, score
from attention_plasticity.measure.streams import Purpose, Streams
from attention_plasticity.metrics import (
    ALIGNED,
    ALIGNED_COUNTED,
    ALIGNED_DROP,
    ALIGNED_FIRST,
    ALIGNED_LAST,
    ATTENDED,
    BIN_QUANTITY,
    DISTANCE_QUANTITY,
    DROP_DISTANCE,
    DROP_POSITION,
    NEAR_BIN_QUANTITY,
    PHASE,
    POOLED,
    POOLED_BIN_QUANTITY,
)
from attention_plasticity.read.layer import NO_COMMON_TEXT, NO_TEXTS, SINGLE_EXAMPLE
from attention_plasticity.read.layout import MOST_BUCKETS
from attention_plasticity.read.pool import NO_ATTENDED_KEYS, KeyPool
from attention_plasticity.read.rows import Keys, Queries
from qk_toolkit.arrays import Array, Ints

FEWEST_TOKENS = 2 * SINK_TOKENS  # of a fifth of the context, if there is a drop
NO_BINS = "the bins of the run are not known"
NO_QUERY_BIN = "no bin except the first has two queries"
NO_EARLIER_KEYS = "no bin of queries sees keys of an earlier bin"
NO_PAIRS = "no bin of queries sees two keys that make a pair"
FEW_TEXTS = "no bin with key pairs has queries of 4 texts"
EMPTY_FIFTH = "no bin with key pairs has queries in this fifth of the context"
SHORT_CONTEXT = (
    f"a fifth of the context has fewer than {FEWEST_TOKENS} tokens, of which {SINK_TOKENS} are the "
    "first of the text"
)
NO_COUNTS = "in every bin, all queries are of one group of texts"
FEW_VISIBLE = (
    f"no bin has queries that see {FEWEST_PAIRS} pairs of keys from 4 texts; capture more keys per "
    "window"
)
NO_ATTENDED_PAIRS = (
    "no bin of queries sees two earlier keys of one of its texts that receive attention"
)
_ATTENDED_PAIRS = 256  # per bin; their error is small beside that of the texts

COLUMNS = (
    *(ALIGNED, ALIGNED_FIRST, ALIGNED_LAST, ALIGNED_DROP),
    *(ALIGNED_COUNTED, POOLED, PHASE, DROP_POSITION, DROP_DISTANCE),
)


def grid_of(queries: Queries, keys: Keys, *others: Queries) -> Grid | Unknown:
    """The queries in the bins of the run, with those of other heads at the same places.

    If bins cannot be used, the reason.
    """
    bins, problem = keys.texts.bins, keys.in_attention_problem
    if bins is None:
        return Unknown(NO_BINS)
    if problem is not None:
        return Unknown(problem)
    if isinstance(queries.visible, Unknown):
        return queries.visible
    codes = [bins.of(rows.position) for rows in (queries, keys)]
    many = [code for code in codes if code.max(initial=0) >= MOST_BUCKETS]
    number = max((len(np.unique(code)) for code in many), default=0)
    if number > MOST_BUCKETS:
        return Unknown(
            f"bins of {bins.size:,} tokens are too many: {number:,}; set a larger bin_size"
        )
    return Grid.of((queries, *others), bins, with_first=queries.visible.is_limited)


def no_plasticity(why: str) -> Found:
    """The columns of a head whose bins are not known."""
    found = Found()
    found.add_unknown(COLUMNS, why)
    return found


def plasticity_columns(
    grid: Grid, keys: Keys, config: RunnerConfig, streams: Streams
) -> list[Found]:
    """Plasticity of every head at one position and over a bin; `streams` are of the key head.

    Over a bin, no rotation has to be known.
    """
    assert isinstance(grid.queries.visible, Visible)
    own = SortedKeys.of(keys, keys.weight, grid.bins)
    rng, number = streams.rng(Purpose.BIN_PAIRS), config.num_pairs_per_bin
    how = config.pair_sampling, config.max_rel_dist, number, rng
    pairs = bin_pairs(own, grid, grid.queries.visible, *how)
    if grid.no_rotation is not None:
        [pooled] = score(grid, pairs, pairs.W, [grid.captured], counted=False)
        return [_only_pooled(grid, pairs, one) for one in pooled]
    if keys.layer.rotation.record is None:
        [aligned] = score(grid, pairs, pairs.turned, [grid.turned])
        pooled = aligned
    elif pairs.turned is pairs.W:
        aligned, pooled = score(grid, pairs, pairs.W, [grid.turned, grid.captured])
    else:
        [aligned] = score(grid, pairs, pairs.turned, [grid.turned])
        [pooled] = score(grid, pairs, pairs.W, [grid.captured], counted=False)
    distance = Distances.of(grid, pairs)
    return [_found(grid, pairs, distance, *both) for both in zip(aligned, pooled, strict=True)]


def _only_pooled(grid: Grid, pairs: BinPairs, pooled: Scored) -> Found:
    """The columns of one head whose rotation is not known."""
    found, over = Found(), grid.mean(pooled.profile, grid.weight)
    why = _why_no_value(grid, pairs) if math.isnan(over.value) else ""
    found.add_unknown((name for name in COLUMNS if name != POOLED), grid.no_rotation or "")
    found.add_quantity(POOLED, over, why, grid.queries.no_errors)
    return found


def _found(
    grid: Grid, pairs: BinPairs, distance: Distances, aligned: Scored, pooled: Scored
) -> Found:
    """The columns of one head."""
    found = Found()
    _add_means(found, grid, (pairs, distance), aligned, pooled)
    profiles = {
        BIN_QUANTITY: aligned.profile,
        POOLED_BIN_QUANTITY: pooled.profile,
        NEAR_BIN_QUANTITY: near_profile(grid, pairs, aligned),
    }
    for name, profile in profiles.items():
        _add_places(found, grid, name, grid.of_bins(profile), grid.number)
    if pairs.eligible.any():
        found.tables["bins"] = _bin_columns(grid, pairs, aligned, pooled)
        found.tables["distances"], values = distance_columns(grid, distance, aligned, pooled)
        _add_places(found, grid, DISTANCE_QUANTITY, values, distance.number)
    return found


def _add_places(found: Found, grid: Grid, name: str, values: Quantity, places: Ints) -> None:
    """Add values of bins or distances to the table of influences."""
    if grid.has_errors:
        found.quantities += [(name, n, values.at(i)) for i, n in enumerate(places.tolist())]


def _add_means(
    found: Found, grid: Grid, drawn: tuple[BinPairs, Distances], aligned: Scored, pooled: Scored
) -> None:
    """Means over tokens: of the head, of its first and last fifth, counted, and the phase."""
    pairs, distance = drawn
    whole = grid.mean(aligned.profile, grid.weight)
    first = grid.mean(aligned.profile, grid.weight_of_fifths[0])
    last = grid.mean(aligned.profile, grid.weight_of_fifths[FIFTHS - 1])
    over = grid.mean(pooled.profile, grid.weight)
    counted = grid.mean(aligned.counted, grid.weight)
    none = math.isnan(whole.value)
    why = _why_no_value(grid, pairs) if none else EMPTY_FIFTH
    no_errors = grid.queries.no_errors
    found.add_quantity(ALIGNED, whole, why, no_errors)
    found.add_quantity(ALIGNED_FIRST, first, why, no_errors)
    found.add_quantity(ALIGNED_LAST, last, why, no_errors)
    if not none and grid.bins.context < FIFTHS * FEWEST_TOKENS:
        found.add_unknown((ALIGNED_DROP, DROP_POSITION, DROP_DISTANCE), SHORT_CONTEXT)
    else:
        drop = first.minus(last)
        no_drop = why if none else _why_no_drop(first, last)
        no_part = no_drop if math.isnan(drop.value) else NO_COMMON_DISTANCE
        found.add_quantity(ALIGNED_DROP, drop, no_drop, no_errors)
        of_position, of_distance = drop_parts(grid, distance, aligned, drop)
        found.add_quantity(DROP_POSITION, of_position, no_part, no_errors)
        found.add_quantity(DROP_DISTANCE, of_distance, no_part, no_errors)
    found.add_quantity(ALIGNED_COUNTED, counted, why if none else NO_COUNTS, no_errors)
    found.add_quantity(POOLED, over, why, no_errors)
    found.add_quantity(PHASE, over.minus(whole), why, no_errors)


def _why_no_value(grid: Grid, pairs: BinPairs) -> str:
    """Why no bin of queries has a value."""
    if not len(grid):
        return NO_QUERY_BIN
    if any(len(numbers) for numbers in pairs.of_bin):
        return FEW_TEXTS
    assert isinstance(grid.queries.visible, Visible)
    if grid.queries.visible.is_limited:
        return FEW_VISIBLE
    return NO_PAIRS if pairs.eligible.any() else NO_EARLIER_KEYS


def _why_no_drop(first: Quantity, last: Quantity) -> str:
    """Why there is no drop, from plasticity in the first fifth and in the last one."""
    fifths = {"first": first.value, "last": last.value}
    parts = [name for name, value in fifths.items() if math.isnan(value)]
    return f"there is no plasticity in the {' and the '.join(parts)} fifth of the context"


def _bin_columns(grid: Grid, pairs: BinPairs, aligned: Scored, pooled: Scored) -> Columns:
    """Columns of the table of bins: the cells that queries see."""
    q, k = np.nonzero(pairs.eligible)
    number = np.zeros(pairs.eligible.shape, np.int64)
    for place, used in enumerate(pairs.of_bin):
        number[place] = np.bincount(pairs.cell[used], minlength=len(pairs.cells))
    cells = [_cells(grid, scored.cells[:, q, k], q) for scored in (aligned, pooled)]
    texts = [math.nan] * len(q) if grid.texts is None else grid.texts[q].tolist()
    bins = grid.bins
    columns: dict[str, npt.NDArray[np.generic]] = {
        "q_bin": grid.number[q],
        "k_bin": pairs.cells[k],
        "plasticity": cells[0].value,
        "n_pairs": number[q, k],
        "q_position": grid.target[q],
        "k_position": pairs.position[k],
        "n_queries": grid.counts.sum(axis=0).astype(np.int64)[q],
        "plasticity_se": cells[0].standard_error,
        "pooled": cells[1].value,
        "pooled_se": cells[1].standard_error,
        "q_start": bins.starts(grid.number[q]),
        "q_end": bins.ends(grid.number[q]),
        "k_start": bins.starts(pairs.cells[k]),
        "k_end": bins.ends(pairs.cells[k]),
        "q_weight": grid.weight.sum(axis=0)[q],
    }
    return {name: column.tolist() for name, column in columns.items()} | {"n_texts": texts}


def _cells(grid: Grid, values: Array, q: Ints) -> Quantity:
    """Values (1 + g, cells) of cells with errors; a cell has the groups of its bin of queries."""
    return quantity(values, (grid.counts[:, q] > 0) & grid.has_errors)


def attended_columns(
    grid: Grid | Unknown,
    pool: KeyPool | None,
    q_heads: Sequence[int],
    config: RunnerConfig,
    streams: Sequence[Streams],
) -> list[Found]:
    """Plasticity at one position of pairs in proportion to the attention that keys receive.

    `q_heads` are those of the grid, and `streams` theirs.
    """
    problem = _no_attended(grid, pool, config)
    found = [Found() for _ in q_heads]
    if problem is not None:
        for one in found:
            one.add_unknown((ATTENDED,), problem)
        return found
    assert isinstance(grid, Grid)
    assert isinstance(grid.queries.visible, Visible)
    assert pool is not None
    own = SortedKeys.of(pool.keys, pool.keys.weight, grid.bins)
    visible = grid.queries.visible
    why = FEW_VISIBLE if visible.is_limited else NO_ATTENDED_PAIRS
    weights = (own.in_units_of_text(pool.pair_weight(pool.attention(one))) for one in q_heads)
    rngs = (one.rng(Purpose.ATTENDED_PAIRS) for one in streams)
    drawn = attended_pairs(own, weights, grid, visible, _ATTENDED_PAIRS, rngs)
    for place, pairs in enumerate(drawn):
        [[scored]] = score(grid, pairs, pairs.turned, [grid.turned_of(place)], counted=False)
        mean = grid.mean(scored.profile, grid.weight)
        found[place].add_quantity(ATTENDED, mean, why, grid.queries.no_errors)
    return found


def _no_attended(grid: Grid | Unknown, pool: KeyPool | None, config: RunnerConfig) -> str | None:
    """Why attended pairs are not known; None if they are."""
    if config.single_example:
        return SINGLE_EXAMPLE
    if isinstance(grid, Unknown):
        return grid.reason
    if grid.no_rotation is not None:
        return grid.no_rotation
    if grid.queries.text is None:
        return NO_TEXTS
    if pool is None:
        return NO_ATTENDED_KEYS
    common = np.isin(grid.queries.text, pool.keys.text)
    return None if common.any() else NO_COMMON_TEXT
