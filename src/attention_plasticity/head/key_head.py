"""What the table of key heads needs of one query head: which of two keys its queries prefer.

All query heads of a key head are asked about the same pairs. Their counts are stored with each
query head, and `run/key_heads.py` joins those of a group. So the row of a key head does not depend
on which of its query heads were computed together, or when.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attention_plasticity.config import RunnerConfig
from attention_plasticity.head.aligned import NO_BINS
from attention_plasticity.head.key_pool import KeyPool
from attention_plasticity.head.layer import NO_TEXTS, SINGLE_EXAMPLE, after_rope
from attention_plasticity.head.rows import KeyHead
from attention_plasticity.head.token_weights import TokenWeights
from attention_plasticity.head.unknown import Unknown
from attention_plasticity.head.windows import window_of
from attention_plasticity.numeric.attended_pairs import FIRST_TOKENS, KeyAttention
from attention_plasticity.numeric.attention_means import head_mean
from attention_plasticity.numeric.attention_spread import attention_spread
from attention_plasticity.numeric.errors.uncertainty import Estimate
from attention_plasticity.numeric.pair_preferences import (
    PlacedKeys,
    PlacedQueries,
    count_in_groups,
    count_preferences,
)
from attention_plasticity.numeric.sizes import GROUPS
from attention_plasticity.numeric.text_pairs import PlacedPairs, TextKeys, TextPairs
from attention_plasticity.numeric.windows import Window
from qk_dump.reader import HeadRows
from qk_dump.rotary import rotate
from qk_toolkit.arrays import Array, Ints

NO_ATTENDED_KEYS = (
    "the dump does not have the attention that keys receive; capture it with capture.attended_keys"
)
NO_PAIRS = "no text has two keys that a later query can see"

_MOST_PAIRS = 2048
_MOST_PLACED = 1024  # pairs at one position
_MOST_QUERIES = 64  # of a bin and a group of texts, for pairs at one position
_PAIRS, _ATTENDED, _PLACED, _QUERIES = 3, 4, 5, 6  # beside the seed of the pairs of the key head

Counts = dict[str, Any]
"""Plain values, for JSON: packed arrays, or a `problem`."""


def packed(values: npt.ArrayLike, kind: str) -> str:
    """Numbers of the numpy type `kind`, such as `<u2`, as short text."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values, kind).tobytes())).decode()


def unpacked(text: str, kind: str) -> npt.NDArray[Any]:
    """The numbers of a text that `packed` made."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), kind)


@dataclass(frozen=True)
class KeyHeadPairs:
    """Pairs of keys of a key head, the same for all query heads of its group."""

    keys: KeyHead
    pool: KeyPool | None
    config: RunnerConfig
    seed: int

    def counts(
        self, rows: HeadRows, weights: TokenWeights, window: int | None, seed: int
    ) -> Counts:
        """The preferences of the queries of one head; `seed` is that of its queries."""
        problem = self._problem(rows)
        if problem is not None:
            return {"problem": problem}
        visible = window_of(self.keys, window)
        if isinstance(visible, Unknown):
            return {"problem": visible.reason}
        assert rows.example_id is not None
        vectors = after_rope(rows.vectors, rows.position, self.keys.rotation)
        queries = PlacedQueries(vectors, rows.position, rows.example_id, weights.weight)
        return {
            "errors": self.config.error_bars,
            "pairs": self._preferences(queries, self.keys, self._pairs(visible), visible, seed),
            "attended": self._attended(queries, visible, seed),
            "aligned": self._aligned(queries, visible),
            "spread": self._spread,
        }

    def _problem(self, rows: HeadRows) -> str | None:
        """Why nothing can be counted; None if it can."""
        if self.config.single_example:
            return SINGLE_EXAMPLE
        if rows.example_id is None:
            return NO_TEXTS
        rotation = self.keys.rotation
        return rotation.problem if rotation.pre_rope else None

    def _preferences(
        self,
        queries: PlacedQueries,
        keys: KeyHead,
        pairs: TextPairs,
        window: Window | None,
        seed: int,
    ) -> Counts:
        if not len(pairs):
            return {"problem": NO_PAIRS}
        rng = np.random.default_rng([seed, _QUERIES])
        found = count_preferences(queries, _placed(keys), pairs, window, rng)
        every = bool((pairs.weight == 1.0).all())
        return {
            "group": packed(self._group(keys, pairs.first), "<u1"),
            "weight": "" if every else packed(pairs.weight, "<f8"),
            **{name: packed(numbers, "<u1") for name, numbers in found._asdict().items()},
        }

    def _attended(self, queries: PlacedQueries, window: Window | None, seed: int) -> Counts:
        if self.pool is None:
            return {"problem": NO_ATTENDED_KEYS}
        return self._preferences(
            queries, self.pool.keys, self._attended_pairs(window), window, seed
        )

    def _pairs(self, window: Window | None) -> TextPairs:
        """Pairs of any two keys of a text, in proportion to the tokens that they stand for."""
        return self._drawn("pairs", window)

    def _attended_pairs(self, window: Window | None) -> TextPairs:
        """Pairs in proportion to the attention that keys receive from all heads of the group."""
        return self._drawn("attended", window)

    @cached_property
    def _known(self) -> dict[tuple[str, Window | None], Any]:
        """What was drawn for an earlier query head. All heads of a group have one window."""
        return {}

    def _drawn(self, kind: str, window: Window | None) -> TextPairs:
        if (kind, window) not in self._known:
            keys, stream = self.keys, _PAIRS
            weight = keys.weights.weight
            if kind == "attended":
                assert self.pool is not None
                keys, stream, weight = self.pool.keys, _ATTENDED, self._attention.weight
            tokens = keys.weights.weight
            rng = np.random.default_rng([self.seed, stream])
            own = _text_keys(keys, weight, tokens, window)
            self._known[kind, window] = own.draw(_MOST_PAIRS, rng)
        found: TextPairs = self._known[kind, window]
        return found

    @cached_property
    def _attention(self) -> KeyAttention:
        """The attention that the keys of the pool receive from the group, over inclusion."""
        assert self.pool is not None
        keys = self.pool.keys
        return KeyAttention.of(self.pool.of_group, keys.weights.weight, keys.rows.position)

    def _aligned(self, queries: PlacedQueries, window: Window | None) -> Counts:
        """Preferences of the queries of a bin, turned to its centre, by groups of texts."""
        bins, rotation = self.keys.all_texts.bins, self.keys.rotation
        if bins is None or rotation.problem is not None:
            return {"problem": rotation.problem or NO_BINS}
        pairs = self._placed_pairs(window)
        if not len(pairs.first):
            return {"problem": NO_PAIRS}
        number = bins.of(pairs.position)  # (p,)
        used, code = np.unique(number, return_inverse=True)
        vectors, record = self.keys.vectors_after_rope, rotation.record
        W = vectors[pairs.first].astype(np.float64) - vectors[pairs.second]  # (p, d)
        centre = 0.5 * (bins.starts(used) + bins.ends(used))  # (bins,)
        if record is not None:  # the score of a query at the position of the pair
            W = np.asarray(rotate(W, pairs.position, centre[code], record), np.float64)
        own = bins.of(queries.position)  # (n,)
        group = self.keys.groups.of(queries.text)
        doubled = np.zeros((len(code), GROUPS), np.int64)
        count = np.zeros((len(used), GROUPS), np.int64)
        for place, one in enumerate(used.tolist()):
            rows = _evenly(np.flatnonzero(own == one), group)
            Q = queries.vectors[rows]  # (m, d)
            if record is not None:
                Q = rotate(Q, queries.position[rows], float(centre[place]), record)
            of_bin = np.flatnonzero(code == place)
            doubled[of_bin] = count_in_groups(Q, group[rows], W[of_bin])
            count[place] = np.bincount(group[rows], minlength=GROUPS)
        return {
            "group": packed(self._group(self.keys, pairs.first), "<u1"),
            "bin": packed(code, "<u2"),
            "doubled": packed(doubled, "<u1"),
            "queries": packed(count, "<u1"),
        }

    def _placed_pairs(self, window: Window | None) -> PlacedPairs:
        if ("placed", window) not in self._known:
            weight = self.keys.weights.weight
            rng = np.random.default_rng([self.seed, _PLACED])
            own = _text_keys(self.keys, weight, weight, window)
            self._known["placed", window] = own.draw_placed(_MOST_PLACED, rng)
        found: PlacedPairs = self._known["placed", window]
        return found

    @cached_property
    def _spread(self) -> Counts:
        """How unequally keys receive attention, as a mean over texts by tokens."""
        if self.pool is None:
            return {"problem": NO_ATTENDED_KEYS}
        rows, attention = self.pool.keys.rows, self.pool.of_group
        assert rows.example_id is not None
        known = np.flatnonzero(rows.position >= FIRST_TOKENS)
        tokens = self.pool.keys.weights.weight[known]
        spread = attention_spread(attention[known], tokens, rows.example_id[known])
        if not len(spread.text):
            return {"problem": NO_PAIRS}
        group = self.keys.groups.of(spread.text) if self.config.error_bars else None
        return {
            name: _message(head_mean(values, spread.tokens, group))
            for name, values in (("gini", spread.gini), ("half", spread.half))
        }

    def _group(self, keys: KeyHead, rows: Ints) -> Ints:
        """(p,) groups of the texts of keys."""
        assert keys.rows.example_id is not None
        return keys.groups.of(keys.rows.example_id[rows])


def _text_keys(keys: KeyHead, weight: Array, tokens: Array, window: Window | None) -> TextKeys:
    assert keys.rows.example_id is not None
    return TextKeys.of(keys.rows.example_id, keys.rows.position, weight, tokens, window)


def _placed(keys: KeyHead) -> PlacedKeys:
    assert keys.rows.example_id is not None
    return PlacedKeys(keys.vectors_after_rope, keys.rows.position, keys.rows.example_id)


def _evenly(rows: npt.NDArray[np.intp], group: Ints) -> npt.NDArray[np.intp]:
    """At most 64 rows of each group of texts, evenly spaced. `group` (n,) is that of all rows."""
    order = rows[np.argsort(group[rows], kind="stable")]
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    chosen = [
        part[np.arange(_MOST_QUERIES) * len(part) // _MOST_QUERIES]
        if len(part) > _MOST_QUERIES
        else part
        for part in parts
    ]
    return np.concatenate(chosen)


def _message(estimate: Estimate) -> list[Any]:
    """Value, influences and number of groups."""
    return [estimate.value, estimate.influences.tolist(), estimate.groups]
