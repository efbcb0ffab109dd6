"""Sizes of the study, and every condition that is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

SNAPKV, EXPECTED, KEYDIFF, TOVA, RANDOM_KEYS = "snapkv", "expected", "keydiff", "tova", "random"
SCORERS = (SNAPKV, EXPECTED, KEYDIFF, TOVA, RANDOM_KEYS)
"""Presses that score keys."""
STREAMING = "streaming"
"""The press that keeps the last tokens."""
CHOICE, REPORT, COPIES = "moby-dick", "jargon-file", "copies"
"""Texts: the rule of division is chosen on one book and reported on the other."""
PLASTICITY = "aligned_plasticity"
ORDERS = (PLASTICITY, "ap_aligned", "ap_overall", "ap_attended", "far_mass", "static_error")
"""Columns of a run by which key heads are ordered."""
FULL, OWN, FLAT, ADAKV, PYRAMID = "full", "own", "flat", "adakv", "pyramidkv"
RULE, VALUE, RANDOM_ORDER, HEAD = "rule", "value", "random_order", "head"
OTHER_VALUES = tuple(f"{VALUE}:{name}" for name in ORDERS if name != PLASTICITY)
"""Budgets by the chosen rule from another value than plasticity at one position."""
ALLOCATIONS = (OWN, FLAT, ADAKV, PLASTICITY, *OTHER_VALUES)
"""How keys are divided among heads: by the scorer's own press, equally, by AdaKV, by a value."""
CAREFUL_RULES = tuple(f"{RULE}:{name}" for name in ("square of the value, fifth equal", "ramp 0.8"))
"""Rules that take less from heads with small values than the chosen one."""
HALF, RANDOM_HALF = "half", "random_half"


@dataclass(frozen=True)
class Plan:
    """Sizes of the study."""

    captured: int = 8192  # tokens of a captured text
    captured_texts: int = 12
    contexts: tuple[int, ...] = (2048, 4096, 7168)  # tokens that are compressed
    middle: int = 4096  # context of everything but the comparison of contexts
    following: int = 1024  # tokens after the context, whose predictions are compared
    texts: int = 8  # of each book
    copied: int = 256  # random tokens that come twice
    compressions: tuple[float, ...] = (0.25, 0.5, 0.75, 0.9)
    scorers: tuple[str, ...] = SCORERS
    random_orders: int = 50
    alone: float = 0.75  # compression of a head that alone loses keys
    head_step: int = 1  # every head_step-th key head is compressed alone
    sink: int = 4
    window: int = 64
    far: int = 256  # last tokens of a head with a window
    seed: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """What the outcome of a condition depends on."""
        names = "captured captured_texts following texts copied sink window far seed"
        return {name: asdict(self)[name] for name in names.split()}


SMALL = Plan(
    captured=2048,
    captured_texts=8,
    contexts=(1024,),
    middle=1024,
    following=256,
    texts=3,
    copied=128,
    compressions=(0.5,),
    scorers=(SNAPKV, EXPECTED),
    random_orders=10,
    head_step=30,
    far=128,
)
"""A smaller table, for a CPU. Its numbers are not those of the page."""


WORDS = {
    SNAPKV: "SnapKV",
    EXPECTED: "Expected Attention",
    KEYDIFF: "KeyDiff",
    TOVA: "TOVA",
    RANDOM_KEYS: "random keys",
    STREAMING: "last tokens",
    OWN: "scorer alone",
    FLAT: "equal",
    ADAKV: "AdaKV",
    PYRAMID: "PyramidKV",
    PLASTICITY: "plasticity at one position",
    "ap_aligned": "the same, mean over query heads",
    "ap_overall": "plasticity over a bucket",
    "ap_attended": "attended plasticity",
    "far_mass": "far attention",
    "static_error": "static error",
}
"""Names for readers."""


class Condition(NamedTuple):
    """How the contexts of some texts are compressed."""

    texts: str  # a book, or COPIES
    context: int
    scorer: str
    compression: float  # of all heads; of half of them for halves, of one for HEAD
    allocation: str  # FULL, PYRAMID, one of ALLOCATIONS, or `KIND:NAME`

    @property
    def name(self) -> str:
        """The key of its outcomes."""
        parts = (self.texts, self.context, self.scorer, f"{self.compression:g}", self.allocation)
        return "/".join(map(str, parts))


def choice_phase(plan: Plan, rules: tuple[str, ...]) -> list[Condition]:
    """Conditions by which the rule of division is chosen."""
    return _settings(plan, CHOICE, plan.middle, (OWN, FLAT, *(f"{RULE}:{one}" for one in rules)))


def report_phases(
    plan: Plan, rules: tuple[str, ...], layers: int, heads: int
) -> Iterator[list[Condition]]:
    """Conditions of the tables, by their importance. Those of a phase have the same texts."""
    middle = plan.middle
    of_rules = tuple(f"{RULE}:{name}" for name in rules)
    orders = tuple(f"{RANDOM_ORDER}:{number}" for number in range(plan.random_orders))
    contexts = sorted(plan.contexts, key=lambda one: one != middle)
    for context in contexts:
        pyramid = [Condition(REPORT, context, SNAPKV, one, PYRAMID) for one in plan.compressions]
        yield [*pyramid, *_settings(plan, REPORT, context, ALLOCATIONS)]
    uncompressed = Condition(COPIES, middle, plan.scorers[0], 0.0, FULL)
    yield [uncompressed, *_settings(plan, COPIES, middle, ALLOCATIONS)]
    yield _settings(plan, REPORT, middle, (*of_rules, *orders))
    yield _shortest(plan)
    yield _settings(plan, COPIES, middle, orders)
    yield _heads_alone(plan, layers * heads, heads)
    for context in contexts[1:]:
        yield _settings(plan, REPORT, context, orders)


def _shortest(plan: Plan) -> list[Condition]:
    """At the shortest context: orders of the same budgets, and rules where heads keep few keys."""
    context, most = min(plan.contexts), max(plan.compressions)
    rules = () if context == plan.middle else CAREFUL_RULES  # all rules are tried at the middle
    return [
        Condition(REPORT, context, scorer, compression, allocation)
        for scorer in (SNAPKV, EXPECTED)
        for compression, allocations in ((0.5, ORDERS[1:]), (most, rules))
        for allocation in allocations
    ]


def _heads_alone(plan: Plan, number: int, heads: int) -> list[Condition]:
    """Half of the heads with a window, and every head that alone loses keys."""
    middle = plan.middle
    windows = [
        *(f"{HALF}:{name}" for name in ORDERS),
        *(f"{RANDOM_HALF}:{draw}" for draw in range(plan.random_orders)),
    ]
    return [
        *(Condition(REPORT, middle, STREAMING, _kept_far(plan), one) for one in windows),
        *(
            Condition(REPORT, middle, scorer, compression, f"{HEAD}:{one // heads}.{one % heads}")
            for scorer, compression in alone(plan)
            for one in range(0, number, plan.head_step)
        ),
    ]


def alone(plan: Plan) -> list[tuple[str, float]]:
    """(scorer, compression) of heads that alone lose keys."""
    return [(SNAPKV, plan.alone), (EXPECTED, plan.alone), (STREAMING, _kept_far(plan))]


def _kept_far(plan: Plan) -> float:
    """The compression of a head that keeps only sinks and its window."""
    return round(1.0 - (plan.sink + plan.far) / plan.middle, 6)


def _settings(
    plan: Plan, texts: str, context: int, allocations: tuple[str, ...]
) -> list[Condition]:
    """Every scorer and compression with every allocation."""
    return [
        Condition(texts, context, scorer, compression, allocation)
        for scorer in plan.scorers
        for compression in plan.compressions
        for allocation in allocations
    ]
