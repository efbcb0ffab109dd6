"""Obstacles to a comparison, and cautions about its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from attention_plasticity.compare.groups import value_of
from attention_plasticity.compare.runs import (
    NamedRun,
    Pair,
    can_match,
    minus_first,
    same_architecture,
    same_texts,
    unequal,
)
from attention_plasticity.tables.intervals import HeadColumn, groups_of
from attention_plasticity.tables.layer_types import type_words
from attention_plasticity.tables.main_plasticity import OVER_BUCKETS, main_plasticity
from attention_plasticity.tables.names import clean
from qk_toolkit.formatting import count, format_heads, index_ranges

Concerned = Literal["means", "differences"]

_METHOD = ("query_model", "pair_sampling", "single_example")
_METHOD_OF_LOCAL_PAIRS = ("max_rel_dist",)
_LONGEST = 60  # characters of a list of heads
_NOT_COMPARED = ("attended_unknown",)  # warnings about values that a comparison does not show


@dataclass(frozen=True)
class Caution:
    """A sentence about the numbers of some runs."""

    text: str
    runs: tuple[str, ...]  # labels
    concerns: Concerned = "means"


def cautions_of(runs: Sequence[NamedRun]) -> list[Caution]:
    """All cautions about the means of the runs, and about their differences from the first."""
    pairs = minus_first(runs)
    return [*obstacles(runs), *run_cautions(runs), *pairing_cautions(runs), *head_cautions(pairs)]


def obstacles(runs: Sequence[NamedRun]) -> list[Caution]:
    """Reasons why the runs cannot be compared; empty if they can."""
    return list(_methods(runs))


def run_cautions(runs: Sequence[NamedRun]) -> list[Caution]:
    """Cautions about the means of the runs."""
    found = [*_contexts(runs), *_layer_types(runs), *_samples(runs)]
    for run in runs:
        found += _of_run(run)
    return [*found, *_unknown_settings(runs), *_over_buckets(runs)]


def pairing_cautions(runs: Sequence[NamedRun]) -> list[Caution]:
    """Cautions about runs that cannot be compared text by text with the first run."""
    reasons: dict[str, list[str]] = {}
    found: list[Caution] = []
    for run, first in minus_first(runs):
        unknown = [one.label for one in (first, run) if one.run.texts.get("digest") is None]
        if same_texts(run, first):
            continue
        if math.isnan(groups_of(run.run) + groups_of(first.run)):
            if not unknown:
                text = f"{run.label} and {first.label} have different texts."
                found.append(Caution(text, (first.label, run.label), "differences"))
            continue
        reason = "the texts differ"
        if unknown:
            reason = f"the original ids of the texts are not known in {' and '.join(unknown)}"
        reasons.setdefault(reason, []).append(run.label)
    found += [
        Caution(
            f"{', '.join(labels)}: not compared text by text with {runs[0].label}, "
            f"because {reason}. The error of the difference is that of independent samples.",
            (runs[0].label, *labels),
            "differences",
        )
        for reason, labels in reasons.items()
    ]
    return found


def head_cautions(pairs: Sequence[Pair]) -> list[Caution]:
    """Cautions about differences that are not over all heads of two runs of one architecture."""
    found = []
    for pair in pairs:
        if text := _different_heads(pair):
            labels = (pair.minus.label, pair.run.label)
            found.append(Caution(text, labels, "differences"))
    return found


def _different_heads(pair: Pair) -> str | None:
    """A sentence with the heads of the difference of plasticity, or of both means.

    Runs of different architectures have different heads in any case. A sentence about them is
    needed only if a mean leaves out heads of its model.
    """
    shown = main_plasticity(pair.run.run), main_plasticity(pair.minus.run)
    level = shown[0].level if shown[0] is shown[1] else OVER_BUCKETS.level
    one, other = (value_of(run.run, level) for run in pair)
    if one is None or other is None:
        return None
    if one.heads == other.heads and same_architecture(*pair):
        return None
    words = f"{_words(pair.run, one)}, {_words(pair.minus, other)}"
    both = len(set(one.heads) & set(other.heads))
    if both and can_match(*pair) and one.eligible is None and other.eligible is None:
        return (
            f"{pair.run.label} minus {pair.minus.label} is over the {count(both, 'head')} that "
            f"both have: {words}."
        )
    if _is_all(pair.run, one) and _is_all(pair.minus, other):
        return None
    return (
        f"{pair.run.label} minus {pair.minus.label} is a difference of means over different "
        f"heads: {words}."
    )


def _is_all(run: NamedRun, column: HeadColumn) -> bool:
    """Whether these are all heads of the model."""
    layers, per_layer = (run.run.layout.get(name, 0) for name in ("num_layers", "num_q_heads"))
    return len(column.heads) == int(layers) * int(per_layer)


def _words(run: NamedRun, column: HeadColumn) -> str:
    if _is_all(run, column):
        return f"{run.label} all {count(len(column.heads), 'head')}"
    listed = format_heads(column.heads)
    if len(listed) > _LONGEST:
        listed = f"layers {index_ranges({layer for layer, _ in column.heads})}"
    return f"{run.label} {count(len(column.heads), 'head')}{f' ({listed})' if listed else ''}"


def chosen_heads(run: NamedRun) -> str | None:
    """The layers and heads that were chosen for a run: `layers 0-3, heads 0`, or `all`.

    None if the settings of the run are not known.
    """
    if not run.run.settings:
        return None
    parts = []
    for name in ("layers", "heads"):
        numbers: Sequence[int] | None = run.run.settings.get(name)
        if isinstance(numbers, list):
            parts.append(f"{name} {index_ranges(numbers)}")
    if run.run.selection is not None:
        parts.append(f"selected {run.run.selection}")
    return ", ".join(parts) or "all"


def cautions_table(cautions: Sequence[Caution]) -> pd.DataFrame:
    """One row per caution: `concerns` (means, differences), `runs`, `text`."""
    rows = [(caution.concerns, ", ".join(caution.runs), caution.text) for caution in cautions]
    return pd.DataFrame(rows, columns=["concerns", "runs", "text"])


def _methods(runs: Sequence[NamedRun]) -> Iterator[Caution]:
    names: tuple[str, ...] = _METHOD
    if any(run.run.settings.get("pair_sampling") == "local" for run in runs):
        names += _METHOD_OF_LOCAL_PAIRS
    for name in names:
        if found := _different(runs, lambda run, name=name: run.run.settings.get(name)):  # type: ignore[misc]
            text = f"{name} differs: {found[0]}; analyse the dumps again with the same {name}"
            yield Caution(text, _labels(runs))


def _different(
    runs: Sequence[NamedRun], setting: Callable[[NamedRun], Any]
) -> tuple[str, tuple[str, ...]] | None:
    """The values of a setting and the runs that have one, if they differ: `a 32, b 64`."""
    known = {run.label: value for run in runs if (value := setting(run)) is not None}
    if len(set(map(str, known.values()))) < 2:
        return None
    return ", ".join(f"{label} {value}" for label, value in known.items()), tuple(known)


def _contexts(runs: Sequence[NamedRun]) -> Iterator[Caution]:
    unknown = tuple(run.label for run in runs if math.isnan(run.run.context))
    known = [run.run.context for run in runs if not math.isnan(run.run.context)]
    if unequal(known):
        span = f"{min(known):,.0f} to {max(known):,.0f} tokens"
        text = (
            f"The runs have different contexts ({span}): a fifth is a different number of tokens "
            "in each run. Fifths, drops and their differences are not at the same positions."
        )
        yield Caution(text, _labels(runs))
    if unknown:
        yield Caution(f"{', '.join(unknown)}: the context is not known.", unknown)


def _over_buckets(runs: Sequence[NamedRun]) -> Iterator[Caution]:
    """Runs without RoPE-aligned plasticity."""
    shown = {run.label: main_plasticity(run.run) for run in runs}
    without = tuple(label for label, found in shown.items() if found is OVER_BUCKETS)
    if not without:
        return
    text = (
        f"{', '.join(without)}: no RoPE-aligned plasticity, so plasticity over a bucket is "
        "compared first. It counts the rotation of RoPE inside a bucket as well."
    )
    yield Caution(text, _labels(runs))


def _layer_types(runs: Sequence[NamedRun]) -> Iterator[Caution]:
    groups: dict[frozenset[str], list[NamedRun]] = {}
    for run in runs:
        groups.setdefault(frozenset(run.layers), []).append(run)
    if len(groups) > 1:
        listed = "; ".join(
            f"{' and '.join(map(type_words, found[0].layers))}: {', '.join(_labels(found))}"
            for found in groups.values()
        )
        text = (
            f"The runs have different types of layers ({listed}). Compare the rows of one type, "
            "not the means over all layers."
        )
        yield Caution(text, _labels(runs))


def _samples(runs: Sequence[NamedRun]) -> Iterator[Caution]:
    """What differs in the samples of the runs: buckets, bins, samplers, and chosen heads."""
    for name, setting, consequence in _OF_SAMPLES:
        if found := _different(runs, setting):
            yield Caution(f"The runs have different {name} ({found[0]}). {consequence}", found[1])


def _buckets(run: NamedRun) -> str | None:
    """`uniform, 512 tokens`; None if they are not recorded."""
    geometry = run.run.geometry
    return None if geometry is None else f"{geometry.type}, {geometry.min_size:,} tokens"


def _sampler(run: NamedRun) -> str | None:
    """`uniform, base_rate 32`; None if it is not recorded."""
    sampler = run.run.dump.get("sampler") or {}
    rates = [name for name in ("base_rate", "key_base_rate") if sampler.get(name) is not None]
    parts = [str(sampler.get("type")), *(f"{name} {sampler[name]}" for name in rates)]
    return clean(", ".join(parts)) if sampler.get("type") else None


def _of_run(run: NamedRun) -> Iterator[Caution]:
    heads = run.run.info.get("heads") or {}
    whole = "" if run.run.layers is None else "whole run: "  # run.json is about all layers
    missing = [("failed", "failed")]
    if (eligible := run.run.eligible_heads) is None:
        missing.insert(0, ("not_captured", "not captured"))
    else:
        sample = f"{len(run.run.head_metrics):,} of {count(eligible, 'head')}, sampled at random"
        text = f"{run.label}: {sample}. Errors of means contain the choice of heads."
        yield Caution(text, (run.label,))
    for name, words in missing:
        if number := heads.get(name):
            be = ("was " if number == 1 else "were ") if name == "not_captured" else ""
            text = f"{run.label}: {whole}{count(number, 'head')} {be}{words}."
            yield Caution(text, (run.label,))
    for record in run.run.info.get("warnings") or []:
        if record["kind"] not in _NOT_COMPARED:
            yield Caution(f"{run.label}: {whole}{record['text']}", (run.label,))


def _unknown_settings(runs: Sequence[NamedRun]) -> Iterator[Caution]:
    unknown = tuple(run.label for run in runs if not run.run.info)
    if unknown:
        text = f"{', '.join(unknown)}: no run.json, so the settings are not known."
        yield Caution(text, unknown)


def _labels(runs: Sequence[NamedRun]) -> tuple[str, ...]:
    return tuple(run.label for run in runs)


_OF_SAMPLES: tuple[tuple[str, Callable[[NamedRun], Any], str], ...] = (
    (
        "bins",
        lambda run: run.run.info.get("bin_size"),
        "Values of aligned plasticity by bins are not over the same positions.",
    ),
    ("buckets", _buckets, "Plasticity over a bucket grows with the size of the bucket."),
    ("samplers", _sampler, "Means over captured queries weight positions differently."),
    ("chosen heads", chosen_heads, "The means go over different layers or heads."),
)
"""Settings of samples, how a run has them, and what follows if they differ."""
