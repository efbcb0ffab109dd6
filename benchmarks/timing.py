"""Times of things that take turns, and tables of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence


def best_in_turn(
    things: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Best time of each thing. They take turns, so that a busy machine slows all alike."""
    best = dict.fromkeys(things, float("inf"))
    for _ in range(rounds):
        for name, thing in things.items():
            began = clock()
            thing()
            best[name] = min(best[name], clock() - began)
    return best


def show(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table in Markdown."""
    print()
    for line in (heading, ["---", *["---:"] * (len(heading) - 1)], *rows):
        print(f"| {' | '.join(map(str, line))} |", flush=True)
