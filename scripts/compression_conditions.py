"""What is tried: which keys every key head keeps, in every condition. numpy alone.

A condition is one pass of the model over a text with some keys evicted. Its name is the key of its
result, so that a run can be continued. Random choices come from seeds: a condition keeps the same
keys in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from attention_plasticity.budget import rule
from compression_eviction import Eviction

BUDGET_SCORE = "bucket_gaussian"
BEST_STATIC, PER_QUERY = "best_static", "received_per_query"
OTHER_SCORES = ("triattention", BEST_STATIC)
"""Scores with which budgets are tried, too."""
RANDOM, SHARED = "random", "random_same_tokens"
UNIFORM, REVERSE = "uniform", "reverse_static_error"
SCORES = (
    "key_norm",
    "q_filter",
    "gaussian",
    "gaussian × v",
    "expected_attention",
    "expected_attention × v",
    "triattention",
    "bucket_gaussian",
    "bucket_gaussian × v",
    "exact_rotation",
    "exact_rotation × v",
    BEST_STATIC,
    PER_QUERY,
)
"""Rankings of keys. The last two need the queries of the text."""
ORDERS = (
    "static_error",
    "static_error_attended",
    "far",
    "ap_attended",
    "ap_aligned",
    "ap_overall",
    "entropy",
)
"""Values of key heads; a head with a large value keeps more keys."""
NOT_RANKED = np.iinfo(np.uint16).max
"""The rank of keys that are always seen, or that no query sees from afar."""
_NUMBERS = (
    "texts_per_book",
    "shares",
    "random_keys",
    "random_orders",
    "random_halves",
    "other_orders",
    "head_step",
)  # how many conditions there are, not what they mean
_CHUNK = 25  # random orders that are evaluated for every text before the next ones
_RANDOM_KEYS, _SHARED_KEYS, _RANDOM_ORDERS = 1, 2, 3  # streams of random numbers

Part = Literal["scores", "budgets", "window", "window_head", "window_half", "head"]
Ranks = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """Sizes of the experiment."""

    context: int = 4096  # tokens of a text
    first: int = 1024  # position of the first evaluated query
    near: int = 128  # last tokens that a query sees in any case
    sinks: int = 4  # first tokens that are always seen
    window: int = 256  # last tokens of a head with a window
    spread: float = 0.8  # budgets are 1 ± spread of their mean
    seed: int = 0
    calibration_texts: int = 16
    texts_per_book: int = 4
    shares: tuple[float, ...] = (0.5, 0.25, 0.1)
    random_keys: int = 8
    random_orders: int = 200
    random_halves: int = 200
    other_orders: int = 100  # random orders with each of the other scores
    head_share: float = 0.25  # of keys, where one head alone loses keys, and with other scores
    head_step: int = 1  # every head_step-th key head is evicted alone

    @property
    def meaning(self) -> dict[str, Any]:
        """Fields on which the result of a condition depends."""
        return {name: value for name, value in asdict(self).items() if name not in _NUMBERS}

    @property
    def candidates(self) -> slice:
        """Positions of keys that can be evicted: a query sees them from afar."""
        return slice(self.sinks, self.context - self.near)

    def kept(self, share: float | Floats) -> Ints:
        """How many of the keys that can be evicted are kept."""
        number = self.candidates.stop - self.candidates.start
        return np.asarray(np.rint(np.asarray(share) * number), np.int64)


SMALL = Plan(
    context=1024,
    first=256,
    near=64,
    window=128,
    calibration_texts=6,
    texts_per_book=2,
    shares=(0.25,),
    random_keys=2,
    random_orders=50,
    random_halves=5,
    other_orders=0,
    head_step=18,
)
"""A smaller table, for a CPU; its numbers are not those of the page."""


class Condition(NamedTuple):
    """What is evicted."""

    part: Part
    label: str = ""  # a score, or an order of heads
    share: float | None = None
    draw: int | None = None
    head: tuple[int, int] | None = None  # layer and key head
    score: str | None = None  # of budgets, if it is not BUDGET_SCORE

    @property
    def name(self) -> str:
        """The key of its results."""
        parts = [self.part, self.label]
        parts += [] if self.share is None else [f"{100 * self.share:g}%"]
        parts += [] if self.draw is None else [f"draw {self.draw}"]
        parts += [] if self.score is None else [f"by {self.score}"]
        parts += [] if self.head is None else [f"head {self.head[0]}.{self.head[1]}"]
        return "/".join(part for part in parts if part)


def phases(plan: Plan, shape: tuple[int, ...]) -> Iterator[list[Condition]]:
    """All conditions in the order of their importance; a phase is run for every text.

    `shape` is the number of layers and of key heads.
    """
    orders = (*ORDERS, REVERSE)
    yield [
        *(Condition("scores", score, share) for share in plan.shares for score in SCORES),
        *(
            Condition("scores", name, share, draw)
            for share in plan.shares
            for name in (RANDOM, SHARED)
            for draw in range(plan.random_keys)
        ),
        *(
            Condition("budgets", order, share)
            for share in plan.shares
            for order in (*orders, UNIFORM)
        ),
        Condition("window"),
        *(Condition("window_half", order) for order in orders),
    ]
    alone = [(layer, head) for layer in range(shape[0]) for head in range(shape[1])]
    alone = alone[:: plan.head_step]
    yield [
        *(Condition("window_head", head=head) for head in alone),
        *(Condition("head", BUDGET_SCORE, plan.head_share, head=head) for head in alone),
        *(Condition("head", BEST_STATIC, plan.head_share, head=head) for head in alone),
    ]
    if plan.other_orders:
        share = plan.head_share
        yield [
            Condition("budgets", order, share, score=score)
            for score in OTHER_SCORES
            for order in (*orders, UNIFORM)
        ]
    for start in range(0, max(plan.random_orders, plan.random_halves), _CHUNK):
        draws = range(start, start + _CHUNK)
        yield [
            *(
                Condition("budgets", RANDOM, share, draw)
                for share in plan.shares
                for draw in draws
                if draw < plan.random_orders
            ),
            *(Condition("window_half", RANDOM, None, d) for d in draws if d < plan.random_halves),
            *(
                Condition("budgets", RANDOM, plan.head_share, draw, score=score)
                for score in OTHER_SCORES
                for draw in draws
                if draw < plan.other_orders
            ),
        ]


def ranks_of(scores: npt.NDArray[Any], plan: Plan) -> Ranks:
    """Ranks (…, n) of the keys of a text by their scores (…, n); 0 is the largest score.

    Only keys that can be evicted are ranked. Of equal scores the earlier key is first.
    """
    ranks = np.full(scores.shape, NOT_RANKED, np.uint16)
    order = np.argsort(-scores[..., plan.candidates], axis=-1, kind="stable")
    places = np.broadcast_to(np.arange(order.shape[-1], dtype=np.uint16), order.shape)
    found = np.empty(order.shape, np.uint16)
    np.put_along_axis(found, order, places, axis=-1)
    ranks[..., plan.candidates] = found
    return ranks


def eviction(
    condition: Condition,
    plan: Plan,
    ranks: Mapping[str, Ranks],
    heads: Mapping[str, Floats],
    text: int,
) -> Eviction:
    """What every key head keeps in a condition.

    `ranks` has (layers, k_heads, n) of every ranking of keys, `heads` has (layers, k_heads) of
    every order. `text` is the number of the text, on which random keys depend.
    """
    shape = next(iter(heads.values())).shape
    near = np.full(shape, plan.near, np.int64)
    if condition.part in ("window", "window_head", "window_half"):
        near = np.where(_with_window(condition, plan, heads), plan.window, plan.context)
        return Eviction(_always(shape, plan), near.astype(np.int64))
    assert condition.share is not None
    number = np.broadcast_to(plan.kept(condition.share), shape)
    score = condition.label
    if condition.part == "budgets":
        score = condition.score or BUDGET_SCORE
    if condition.part == "budgets" and condition.label != UNIFORM:
        values = _values(condition, plan, heads)
        number = plan.kept(budgets(values, condition.share, plan.spread))
    if condition.part == "scores" and condition.draw is not None:
        chosen = _random_ranks(condition, plan, shape, text)
    else:
        chosen = ranks[score]
    if condition.head is not None:
        near = np.full(shape, plan.context, np.int64)
        near[condition.head] = plan.near
    return Eviction(_always(shape, plan) | (chosen < number[..., None]), near)


def budgets(values: Floats, keep: float, spread: float) -> Floats:
    """Shares of keys of every head (layers, k_heads), by the rule of the verb `budget`."""
    found = rule.budgets(rule.ranks(values.ravel()), keep, spread)
    return np.asarray(found).reshape(values.shape)


def _values(condition: Condition, plan: Plan, heads: Mapping[str, Floats]) -> Floats:
    """The values (layers, k_heads) by which heads are ordered."""
    if condition.draw is not None:
        shape = next(iter(heads.values())).shape
        rng = np.random.default_rng([plan.seed, _RANDOM_ORDERS, condition.draw])
        return rng.random(shape)
    return -heads["static_error"] if condition.label == REVERSE else heads[condition.label]


def _with_window(
    condition: Condition, plan: Plan, heads: Mapping[str, Floats]
) -> npt.NDArray[np.bool_]:
    """(layers, k_heads) heads with a window: all, one, or the half with the smallest values."""
    shape = next(iter(heads.values())).shape
    if condition.part == "window":
        return np.ones(shape, np.bool_)
    chosen = np.zeros(shape, np.bool_)
    if condition.head is not None:
        chosen[condition.head] = True
        return chosen
    order = np.argsort(_values(condition, plan, heads), axis=None, kind="stable")
    chosen.flat[order[: order.size // 2]] = True
    return chosen


def _random_ranks(condition: Condition, plan: Plan, shape: tuple[int, ...], text: int) -> Ranks:
    """Random ranks of the keys of every head, or the same ones in all heads."""
    assert condition.draw is not None
    if condition.label == SHARED:
        rng = np.random.default_rng([plan.seed, _SHARED_KEYS, condition.draw, text])
        one = ranks_of(rng.random(plan.context), plan)  # (n,)
        return np.broadcast_to(one, (*shape, plan.context))
    rng = np.random.default_rng([plan.seed, _RANDOM_KEYS, condition.draw, text])
    return ranks_of(rng.random((*shape, plan.context)), plan)


def _always(shape: tuple[int, ...], plan: Plan) -> npt.NDArray[np.bool_]:
    """(layers, k_heads, n) the first tokens, which all queries see."""
    kept = np.zeros((*shape, plan.context), np.bool_)
    kept[..., : plan.sinks] = True
    return kept
