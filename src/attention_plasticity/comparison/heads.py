"""The heads behind the means of compared runs, and cautions about means over different heads."""

from __future__ import annotations

from collections.abc import Sequence

from attention_plasticity.comparison.runs import ALL_LAYERS, ComparedRun
from attention_plasticity.run.plan import format_heads
from qk_toolkit.formatting import count, index_ranges

_LONGEST = 60  # characters of a list of heads

Heads = tuple[tuple[int, int], ...]


def same_architecture(one: ComparedRun, other: ComparedRun) -> bool:
    """Whether the heads of two runs correspond, as far as the numbers of heads are known."""
    common = one.layout.keys() & other.layout.keys()
    return all(one.layout[name] == other.layout[name] for name in common)


def different_heads(run: ComparedRun, first: ComparedRun) -> list[str]:
    """Sentences about differences of means over different heads, with the heads of each mean.

    Runs of different architectures have different heads in any case. A sentence about them is
    needed only if a mean leaves out heads of its model.
    """
    by_heads: dict[tuple[Heads, Heads], list[str]] = {}
    one, other = run.means[ALL_LAYERS].columns, first.means[ALL_LAYERS].columns
    for name in one.keys() & other.keys():
        if not (one[name].heads and other[name].heads):
            continue  # there is no difference
        by_heads.setdefault((one[name].heads, other[name].heads), []).append(name)
    names = [name for name in one if name in other]
    found = []
    for (mine, others), columns in sorted(by_heads.items(), key=lambda item: -len(item[1])):
        same = mine == others and same_architecture(run, first)
        if not same and not (_is_all(run, mine) and _is_all(first, others)):
            of = "" if len(by_heads) == 1 else f"{', '.join(sorted(columns, key=names.index))}: "
            found.append(
                f"{of}{run.label} minus {first.label} is a difference of means over different "
                f"heads: {run.label} {_words(run, mine)}, {first.label} {_words(first, others)}."
            )
    return found


def chosen_heads(run: ComparedRun) -> str | None:
    """The layers and heads that were chosen for a run: `layers 0-3, heads 0`, or `all`.

    None if the settings of the run are not known.
    """
    if not run.settings:
        return None
    parts = []
    for name in ("layers", "heads"):
        numbers: Sequence[int] | None = run.settings.get(name)
        if isinstance(numbers, list):
            parts.append(f"{name} {index_ranges(numbers)}")
    if run.run.selection is not None:
        parts.append(f"selected {run.run.selection}")
    return ", ".join(parts) or "all"


def _is_all(run: ComparedRun, heads: Heads) -> bool:
    """Whether these are all heads of the model."""
    layers, per_layer = (run.layout.get(name, 0) for name in ("num_layers", "num_q_heads"))
    return bool(heads) and len(heads) == layers * per_layer


def _words(run: ComparedRun, heads: Heads) -> str:
    if _is_all(run, heads):
        return f"all {count(len(heads), 'head')}"
    listed = format_heads(heads)
    if len(listed) > _LONGEST:
        listed = f"layers {index_ranges({layer for layer, _ in heads})}"
    return f"{count(len(heads), 'head')}{f' ({listed})' if listed else ''}"
