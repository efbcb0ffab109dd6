"""Obstacles to a comparison, and cautions about its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from attention_plasticity.comparison.runs import (
    ComparedRun,
    chosen_heads,
    different_heads,
    unequal,
)
from attention_plasticity.comparison.scores import Correlation, evidence
from attention_plasticity.tables.intervals import groups_of
from attention_plasticity.tables.layer_types import type_words
from attention_plasticity.tables.main_plasticity import OVER_BUCKETS, main_plasticity
from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count

Concerned = Literal["means", "differences", "correlations"]

_METHOD = ("query_model", "pair_sampling", "single_example", "equal_texts")
_METHOD_OF_LOCAL_PAIRS = ("max_rel_dist",)
_SHORT_WARNINGS = {
    "few_queries": "few queries in some bins or buckets",
    "few_texts": "few texts in some bins or buckets",
    "no_errors": "no intervals, because there are too few texts",
    "texts_unknown": "no intervals, because the texts are not known",
    "texts_not_named": "examples.parquet does not name all texts",
    "selective_layers": "some layers select keys by content",
}
_NOT_COMPARED = ("attended_unknown",)  # warnings about values that a comparison does not show


@dataclass(frozen=True)
class Caution:
    """A sentence about the numbers of some runs."""

    text: str
    short: str  # for the footnote of a figure, without the names of runs; empty: not there
    runs: tuple[str, ...]  # labels
    concerns: Concerned = "means"
    score: str | None = None  # of a correlation; None: all scores


def obstacles(runs: Sequence[ComparedRun]) -> list[Caution]:
    """Reasons why the runs cannot be compared; empty if they can."""
    return list(_methods(runs))


def score_obstacles(runs: Sequence[ComparedRun], *, forced: bool) -> list[Caution]:
    """Reason why the drops cannot be correlated with scores, or its caution if it is forced.

    Raises a `ConfigError` if no run has a drop.
    """
    if all(main_plasticity(run.run.head_metrics) is OVER_BUCKETS for run in runs):
        raise ConfigError(
            "scores: are correlated with the drop at one position, which no run has; it needs the "
            "rotary records of the dump: attention-plasticity add-rotary, and analyze again"
        )
    if not unequal(run.run.context for run in runs):
        return []
    contexts = f"unequal contexts ({_listed_contexts(runs)})"
    text = (
        f"the drops are over {contexts}, so they cannot be correlated with scores; capture all "
        "models with one tokenizer.max_length"
    )
    if forced:
        text = f"The correlation compares drops over different positions: {contexts}."
    return [Caution(text, "", _labels(runs), "correlations")]


def run_cautions(runs: Sequence[ComparedRun]) -> list[Caution]:
    """Cautions about the means of the runs."""
    found = [*_contexts(runs), *_layer_types(runs), *_samples(runs)]
    for run in runs:
        found += _of_run(run)
    return [*found, *_unknown_settings(runs), *_over_buckets(runs)]


def pairing_cautions(runs: Sequence[ComparedRun]) -> list[Caution]:
    """Cautions about runs that cannot be compared text by text with the first run."""
    first = runs[0]
    reasons: dict[str, list[str]] = {}
    found: list[Caution] = []
    for run in runs[1:]:
        unknown = [one.label for one in (first, run) if one.run.texts.get("digest") is None]
        if same_texts(run, first):
            continue
        if math.isnan(groups_of(run.run) + groups_of(first.run)):
            if not unknown:
                found.append(_other_texts(run, first))
            continue
        reason = "the texts differ"
        if unknown:
            reason = f"the original ids of the texts are not known in {' and '.join(unknown)}"
        reasons.setdefault(reason, []).append(run.label)
    found += [
        Caution(
            f"{', '.join(labels)}: not compared text by text with {first.label}, because {reason}. "
            "The error of the difference is that of independent samples.",
            "differences of independent samples",
            (first.label, *labels),
            "differences",
        )
        for reason, labels in reasons.items()
    ]
    return found


def _other_texts(run: ComparedRun, first: ComparedRun) -> Caution:
    """For runs without errors."""
    text = f"{run.label} and {first.label} have different texts."
    return Caution(text, "different texts", (first.label, run.label), "differences")


def head_cautions(runs: Sequence[ComparedRun]) -> list[Caution]:
    """Cautions about differences from the first run of means over different heads."""
    return [
        Caution(text, "means over different heads", (runs[0].label, run.label), "differences")
        for run in runs[1:]
        for text in different_heads(run, runs[0])
    ]


def correlation_cautions(
    runs: Sequence[ComparedRun], relations: Sequence[Correlation]
) -> list[Caution]:
    """Cautions about correlations over few runs."""
    few = {found.score: text for found in relations if (text := evidence(found))}
    return [
        Caution(f"{clean(score)}: {text}", "", _labels(runs), "correlations", score)
        for score, text in few.items()
    ]


def same_texts(one: ComparedRun, other: ComparedRun) -> bool:
    """Whether both runs have the same texts in the same groups, by their original ids."""
    digest = one.run.texts.get("digest")
    return digest is not None and digest == other.run.texts.get("digest")


def cautions_table(cautions: Sequence[Caution]) -> pd.DataFrame:
    """One row per caution: `concerns` (means, differences, correlations), `runs`, `text`."""
    rows = [(caution.concerns, ", ".join(caution.runs), caution.text) for caution in cautions]
    return pd.DataFrame(rows, columns=["concerns", "runs", "text"])


def texts_about(cautions: Iterable[Caution], *concerned: Concerned) -> list[str]:
    """The texts of cautions about means, differences or correlations."""
    return [caution.text for caution in cautions if caution.concerns in concerned]


def joined(cautions: Iterable[Caution]) -> str:
    """The texts of cautions in one cell of a table."""
    return " | ".join(caution.text for caution in cautions)


def _methods(runs: Sequence[ComparedRun]) -> Iterator[Caution]:
    names: tuple[str, ...] = _METHOD
    if any(run.run.settings.get("pair_sampling") == "local" for run in runs):
        names += _METHOD_OF_LOCAL_PAIRS
    for name in names:
        values = {run.label: run.run.settings.get(name) for run in runs}
        known = {label: value for label, value in values.items() if value is not None}
        if len(set(known.values())) > 1:
            listed = ", ".join(f"{label} {value}" for label, value in known.items())
            text = f"{name} differs: {listed}; analyse the dumps again with the same {name}"
            yield Caution(text, f"{name} differs", tuple(values))


def _listed_contexts(runs: Sequence[ComparedRun]) -> str:
    """`small 700 tokens, large 8,192 tokens`."""
    return ", ".join(f"{run.label} {_tokens(run.run.context)}" for run in runs)


def _tokens(context: float) -> str:
    return "of unknown context" if math.isnan(context) else f"{context:,.0f} tokens"


def _contexts(runs: Sequence[ComparedRun]) -> Iterator[Caution]:
    unknown = tuple(run.label for run in runs if math.isnan(run.run.context))
    known = [run.run.context for run in runs if not math.isnan(run.run.context)]
    if unequal(known):
        span = f"{min(known):,.0f} to {max(known):,.0f} tokens"
        text = (
            f"The runs have different contexts ({span}): a fifth is a different number of tokens "
            "in each run. Fifths, drops and their differences are not at the same positions."
        )
        yield Caution(text, f"unequal contexts, {span}", _labels(runs))
    if unknown:
        yield Caution(
            f"{', '.join(unknown)}: the context is not known.", "context not known", unknown
        )


def _over_buckets(runs: Sequence[ComparedRun]) -> Iterator[Caution]:
    """Runs without plasticity at one position."""
    shown = {run.label: main_plasticity(run.run.head_metrics) for run in runs}
    without = tuple(label for label, found in shown.items() if found is OVER_BUCKETS)
    if not without:
        return
    text = (
        f"{', '.join(without)}: no plasticity at one position, so plasticity over a bucket is "
        "compared first. It counts the rotation of RoPE inside a bucket as well."
    )
    yield Caution(text, "over a bucket: RoPE's rotation counts", _labels(runs))


def _layer_types(runs: Sequence[ComparedRun]) -> Iterator[Caution]:
    groups: dict[frozenset[str], list[ComparedRun]] = {}
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
        yield Caution(text, "different types of layers", _labels(runs))


def _samples(runs: Sequence[ComparedRun]) -> Iterator[Caution]:
    """What differs in the samples of the runs: buckets, bins, samplers, and chosen heads."""
    consequences = {
        "bins": "Values of aligned plasticity by bins are not over the same positions.",
        "buckets": "Plasticity over a bucket grows with the size of the bucket.",
        "samplers": "Means over captured queries weight positions differently.",
        "chosen heads": "The means go over different layers or heads.",
    }
    facts: dict[str, dict[str, Any]] = {
        "bins": {run.label: run.run.info.get("bin_size") for run in runs},
        "buckets": {run.label: _buckets(run) for run in runs},
        "samplers": {run.label: _sampler(run) for run in runs},
        "chosen heads": {run.label: chosen_heads(run) for run in runs},
    }
    for name, values in facts.items():
        known = {label: str(value) for label, value in values.items() if value is not None}
        if len(set(known.values())) > 1:
            listed = ", ".join(f"{label} {value}" for label, value in known.items())
            text = f"The runs have different {name} ({listed}). {consequences[name]}"
            yield Caution(text, f"different {name}", tuple(known))


def _buckets(run: ComparedRun) -> str | None:
    """`uniform, 512 tokens`; None if they are not recorded."""
    geometry = run.run.geometry
    return None if geometry is None else f"{geometry.type}, {geometry.min_size:,} tokens"


def _sampler(run: ComparedRun) -> str | None:
    """`uniform, base_rate 32`; None if it is not recorded."""
    sampler = run.run.dump.get("sampler") or {}
    rates = [name for name in ("base_rate", "key_base_rate") if sampler.get(name) is not None]
    parts = [str(sampler.get("type")), *(f"{name} {sampler[name]}" for name in rates)]
    return clean(", ".join(parts)) if sampler.get("type") else None


def _of_run(run: ComparedRun) -> Iterator[Caution]:
    heads = run.run.info.get("heads") or {}
    whole = "" if run.run.layers is None else "whole run: "  # run.json is about all layers
    missing = [("failed", "failed")]
    if (eligible := run.run.eligible_heads) is None:
        missing.insert(0, ("not_captured", "not captured"))
    else:
        sample = f"{len(run.run.head_metrics):,} of {count(eligible, 'head')}, sampled at random"
        text = f"{run.label}: {sample}. Errors of means contain the choice of heads."
        yield Caution(text, "heads sampled at random", (run.label,))
    for name, words in missing:
        if number := heads.get(name):
            be = ("was " if number == 1 else "were ") if name == "not_captured" else ""
            text = f"{run.label}: {whole}{count(number, 'head')} {be}{words}."
            yield Caution(text, f"{whole}some heads {words}", (run.label,))
    for record in run.run.info.get("warnings") or []:
        kind = str(record["kind"])
        if kind not in _NOT_COMPARED:
            short = _SHORT_WARNINGS.get(kind, kind.replace("_", " "))
            text = f"{run.label}: {whole}{record['text']}"
            yield Caution(text, whole + short, (run.label,))


def _unknown_settings(runs: Sequence[ComparedRun]) -> Iterator[Caution]:
    unknown = tuple(run.label for run in runs if not run.run.info)
    if unknown:
        text = f"{', '.join(unknown)}: no run.json, so the settings are not known."
        yield Caution(text, "settings not known", unknown)


def _labels(runs: Sequence[ComparedRun]) -> tuple[str, ...]:
    return tuple(run.label for run in runs)
