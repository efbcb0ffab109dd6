"""Sizes of the study, and every condition that is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NamedTuple

SNAPKV, EXPECTED, KEYDIFF = "snapkv", "expected", "keydiff"
SCORERS = (SNAPKV, EXPECTED, KEYDIFF)
"""Presses that score keys."""
WINDOW, NOTHING, REPLAY = "window", "nothing", "replay"
"""In the place of a scorer: the last tokens; nothing is pruned; a second reading of the context."""
CHOICE, REPORT = "moby-dick", "jargon-file"
"""Books: of the capture and the choice of the rule, and of the report."""
CODE, FRENCH, RECORDS = "code", "french", "records"
OTHERS = (CODE, FRENCH, RECORDS)
"""Other texts: Python source, French prose, and lines of data with repeated fields."""
COPIES, NEEDLES = "copies", "needles"
"""Tasks. The texts of a task are named `TASK:BOOK`."""
FULL, OWN, FLAT, ADAKV, CRITICAL = "full", "own", "flat", "adakv", "critical"
PYRAMID, KVZIP = "pyramidkv", "kvzip"
PLASTICITY, STATIC, FAR, BOTH = "aligned_plasticity", "static_error", "far_mass", "both"
"""Values of key heads; the last one is the mean rank of plasticity and far attention."""
RULE, RANDOM, SOURCE = "rule", "random", "from"
"""Kinds of allocations, named `KIND:NAME`: another rule, a random order, values of other texts."""
LAYERS = "layers"
"""`LAYERS:ORDER`: windows of whole layers, those with the smallest mean of the order."""
RULER = "ruler"
RULER_TASKS = (
    *("niah_single_1", "niah_single_2", "niah_single_3"),
    *("niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"),
)


@dataclass(frozen=True)
class Plan:
    """Sizes of the study."""

    captured: int = 4096  # tokens of a captured text
    captured_texts: int = 12
    fewer_tokens: int = 1024  # shorter captured texts
    fewer_texts: tuple[int, ...] = (2, 4, 8, 12)
    contexts: tuple[int, ...] = (4096, 2048, 7168)  # tokens that are compressed; the main one first
    following: int = 1024  # tokens after the context, whose predictions are compared
    followed_choice: int = 512  # the same for the choice of the rule
    texts: int = 8  # of every book
    copied: int = 256  # random tokens that come twice
    needles: int = 8  # numbers in a text
    answered: float = 0.8  # share of the numbers that a model finds with a full cache, or no task
    ruler_texts: int = 20  # of a task
    generated: int = 48  # most tokens of an answer to RULER
    scorers: tuple[str, ...] = SCORERS
    compressions: tuple[float, ...] = (0.25, 0.5, 0.75, 0.875, 0.9)
    ruler_compressions: tuple[float, ...] = (0.25, 0.5, 0.75, 0.875)
    choice_scorers: tuple[str, ...] = (SNAPKV, EXPECTED)
    choice_compressions: tuple[float, ...] = (0.5, 0.75, 0.9)
    few: tuple[float, ...] = (0.5, 0.75)  # compressions of the smaller comparisons
    random_orders: int = 50
    random_windows: int = 20
    window_shares: tuple[float, ...] = (0.5, 0.35, 0.25)  # of heads that keep everything
    sink: int = 4
    window: int = 64
    recent: int = 256  # last tokens of a head with a window
    seed: int = 0

    @property
    def main(self) -> int:
        """The context of all smaller comparisons."""
        return self.contexts[0]

    @property
    def settings(self) -> dict[str, Any]:
        """What the outcome of a condition depends on."""
        names = "captured captured_texts fewer_tokens following followed_choice texts copied "
        names += "needles answered ruler_texts generated sink window recent seed"
        return {name: asdict(self)[name] for name in names.split()}


SMALL = Plan(
    captured=1024,
    captured_texts=4,
    fewer_tokens=512,
    fewer_texts=(2,),
    contexts=(1024,),
    following=256,
    followed_choice=256,
    texts=2,
    copied=128,
    needles=4,
    ruler_texts=4,
    ruler_compressions=(0.5, 0.75),
    scorers=(SNAPKV, EXPECTED),
    compressions=(0.5, 0.75),
    choice_compressions=(0.75,),
    random_orders=5,
    random_windows=3,
    window_shares=(0.5,),
    recent=128,
)
"""A smaller table, for a CPU. Its numbers are not those of the page."""


class Condition(NamedTuple):
    """How the contexts of some texts are compressed."""

    texts: str  # a book, or `TASK:BOOK`
    context: int
    scorer: str
    compression: float  # of all heads; for WINDOW: the share of heads with a window
    allocation: str

    @property
    def name(self) -> str:
        """The key of its outcomes."""
        parts = (self.texts, self.context, self.scorer, f"{self.compression:g}", self.allocation)
        return "/".join(map(str, parts))


def needles_in(book: str) -> str:
    """The task of finding numbers in a book."""
    return f"{NEEDLES}:{book}"


def copies_in(book: str) -> str:
    """The task of copying random tokens."""
    return f"{COPIES}:{book}"


def ruler(task: str) -> str:
    """A task of RULER."""
    return f"{RULER}:{task}"


def full(texts: str, context: int) -> Condition:
    """Nothing is pruned."""
    return Condition(texts, context, NOTHING, 0.0, FULL)


def source_name(book: str, tokens: int, texts: int) -> str:
    """Values of key heads from some texts."""
    return f"{book}/{tokens}/{texts}"


def main_source(plan: Plan) -> str:
    """The values of all comparisons but those of transfer."""
    return source_name(CHOICE, plan.captured, plan.captured_texts)


def sources(plan: Plan) -> list[tuple[str, int, int]]:
    """(book, tokens, texts) of all captures; the first is that of `main_source`."""
    lengths = (plan.captured, plan.fewer_tokens)
    fewer = [(CHOICE, *size) for size in product(lengths, reversed(plan.fewer_texts))]
    main = (CHOICE, plan.captured, plan.captured_texts)
    others = [(book, plan.captured, plan.captured_texts) for book in OTHERS]
    return [main, *(one for one in fewer if one != main), *others]


def choice_conditions(plan: Plan, rules: tuple[str, ...]) -> Iterator[list[Condition]]:
    """Conditions by which the rule of division is chosen. Those of a list have the same texts."""
    names = (FLAT, *(f"{RULE}:{one}" for one in rules))
    for context, texts in product(plan.contexts, (CHOICE, needles_in(CHOICE))):
        yield [
            full(texts, context),
            *_settings(texts, context, plan.choice_scorers, (*plan.choice_compressions,), names),
        ]


def report_conditions(plan: Plan, rules: tuple[str, ...] = ()) -> Iterator[list[Condition]]:
    """Conditions of the tables, by their importance. Those of a list have the same texts.

    `rules` are those that a part of the choice prefers; they are reported, too.
    """
    names = (FLAT, PLASTICITY, ADAKV, OWN, CRITICAL, STATIC)
    for context in plan.contexts:
        for texts in (REPORT, needles_in(REPORT)):
            pyramid = [Condition(texts, context, SNAPKV, one, PYRAMID) for one in plan.compressions]
            yield [
                full(texts, context),
                *_settings(texts, context, plan.scorers, plan.compressions, names),
                *pyramid,
            ]
    task, main = copies_in(REPORT), plan.main
    yield [full(task, main), *_settings(task, main, plan.scorers, plan.compressions, names)]
    few = (plan.choice_scorers, plan.few)
    from_others = tuple(
        f"{SOURCE}:{source_name(book, plan.captured, plan.captured_texts)}" for book in OTHERS
    )
    for book in (*OTHERS, REPORT):
        own = (FLAT, PLASTICITY, ADAKV) if book != REPORT else ()
        yield _settings(book, main, *few, (*own, *from_others))
    for texts in (REPORT, needles_in(REPORT), copies_in(REPORT)):
        yield list(_windows(plan, texts))
    of_sources = tuple(f"{SOURCE}:{source_name(*one)}" for one in sources(plan)[1:])
    fewer = tuple(one for one in of_sources if one not in from_others)
    for texts in (REPORT, needles_in(REPORT)):
        yield _settings(texts, main, *few, fewer)
    for texts in (REPORT, needles_in(REPORT), copies_in(REPORT)):
        yield [Condition(texts, main, REPLAY, one, KVZIP) for one in plan.compressions]
    tried = tuple(f"{RULE}:{one}" for one in rules)
    for context, texts in product(plan.contexts, (REPORT, needles_in(REPORT))):
        yield _settings(texts, context, plan.choice_scorers, plan.choice_compressions, tried)
    orders = tuple(f"{RANDOM}:{number}" for number in range(plan.random_orders))
    for texts in (REPORT, needles_in(REPORT)):
        yield _settings(texts, main, *few, orders)
    for texts in (REPORT, needles_in(REPORT), copies_in(REPORT)):
        yield list(_layer_windows(plan, texts))
    shares = plan.ruler_compressions
    for texts in map(ruler, RULER_TASKS):
        yield [
            full(texts, main),
            *_settings(texts, main, plan.choice_scorers, shares, names),
            *(Condition(texts, main, SNAPKV, one, PYRAMID) for one in shares),
            *(Condition(texts, main, REPLAY, one, KVZIP) for one in shares),
        ]


def _windows(plan: Plan, texts: str) -> Iterator[Condition]:
    """Some heads keep everything, the others their first and last tokens."""
    orders = (PLASTICITY, FAR, BOTH, *(f"{RANDOM}:{n}" for n in range(plan.random_windows)))
    for share, order in product(plan.window_shares, orders):
        yield Condition(texts, plan.main, WINDOW, round(1.0 - share, 6), order)


def _layer_windows(plan: Plan, texts: str) -> Iterator[Condition]:
    """Some layers keep everything, the others their first and last tokens."""
    orders = (STATIC, PLASTICITY, FAR, *(f"{RANDOM}:{n}" for n in range(plan.random_windows)))
    for share, order in product(plan.window_shares, orders):
        yield Condition(texts, plan.main, WINDOW, round(1.0 - share, 6), f"{LAYERS}:{order}")


def _settings(
    texts: str,
    context: int,
    scorers: tuple[str, ...],
    compressions: tuple[float, ...],
    allocations: tuple[str, ...],
) -> list[Condition]:
    """Every scorer and compression with every allocation."""
    return [Condition(texts, context, *one) for one in product(scorers, compressions, allocations)]
