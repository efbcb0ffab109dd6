"""Captions of figures, as plain text for a paper.

A figure function gives what is drawn and how errors are made. A figure of a run also gets the
texts, the context and the settings of the run. The caption is kept beside the matplotlib figure,
so that `save_figure` can write it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.layer_types import layers_by_type, type_words
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
    main_plasticity,
)
from attention_plasticity.tables.names import PAIR_WORDS, pair_words
from qk_toolkit.formatting import count, index_ranges

_PAIRS_OF = {
    "bucket": "per key bucket",
    "local": "for every key bucket",
    "context": "for every eligible key bucket",
}
_NOT_KNOWN = "The run has no plasticity at one position"


@dataclass(frozen=True)
class Caption:
    """The parts of a caption, in their order."""

    shows: str  # what is drawn, in one or more sentences
    sample: tuple[str, ...]  # heads, texts, context: one sentence
    details: tuple[str, ...] = ()  # sentences about marks and intervals
    settings: tuple[str, ...] = ()  # of the run: one sentence
    plasticity: PlasticityColumns | None = None  # what the figure shows; None: no plasticity

    @property
    def text(self) -> str:
        """The caption as one paragraph."""
        sample, settings = "; ".join(self.sample), "; ".join(self.settings)
        sentences = [self.shows, f"{sample}.", *self.details, f"{settings}." if settings else ""]
        return " ".join(filter(None, sentences))


_CAPTIONS: WeakKeyDictionary[Figure, Caption | str] = WeakKeyDictionary()


def set_caption(figure: Figure, caption: Caption | str) -> None:
    """Keep the caption of a figure: its parts, or a text."""
    _CAPTIONS[figure] = caption


def caption_of(figure: Figure) -> str | None:
    """The caption of a figure; None if it has none.

    Examples:
        >>> from attention_plasticity import open_run
        >>> from attention_plasticity.plots import caption_of, map_figure
        >>> figure = map_figure(open_run("results/sample").head_metrics)
        >>> "6 query heads" in caption_of(figure)
        True
    """
    caption = _CAPTIONS.get(figure)
    return caption.text if isinstance(caption, Caption) else caption


def add_run(figure: Figure, run: FinishedRun) -> None:
    """Add the texts, the context and the settings of a run to the caption of its figure."""
    caption = _CAPTIONS[figure]
    assert isinstance(caption, Caption)
    shown = caption.plasticity
    details, settings = caption.details, caption.settings
    if shown is not None:
        settings += tuple(_settings(run, shown))
    if shown is OVER_BUCKETS and not _has_aligned(run):
        details += (f"{_NOT_KNOWN}.",)
    if shown is AT_ONE_POSITION and (missing := _without_aligned(run)):
        has = "has" if missing == 1 else "have"
        details += (f"{count(missing, 'further head')} {has} no {AT_ONE_POSITION.name}.",)
    _CAPTIONS[figure] = replace(
        caption, sample=(*caption.sample, *_sample(run)), details=details, settings=settings
    )


def _has_aligned(run: FinishedRun) -> bool:
    """Whether the run has plasticity at one position."""
    known = run.path("head_metrics").exists()
    return run.has("bins") or (known and main_plasticity(run.head_metrics) is AT_ONE_POSITION)


def _without_aligned(run: FinishedRun) -> int:
    """How many heads have no plasticity at one position, in a run where others have it."""
    if not run.path("head_metrics").exists():
        return 0
    metrics = run.head_metrics
    known = main_plasticity(metrics) is AT_ONE_POSITION
    return int(metrics[AT_ONE_POSITION.level].isna().sum()) if known else 0


def interval_sentence(
    what: str, groups: npt.ArrayLike, *, complete: bool = True, eligible: int | None = None
) -> str:
    """How the 95 % intervals are made. `what` is the beginning of the sentence.

    `groups` are the numbers of groups of texts behind the values. Without `complete`, some values
    have no interval. `eligible` is the number of heads from which the heads of a mean were sampled
    at random; None if they are fixed.
    """
    numbers = np.asarray(groups, np.float64)
    known = numbers[numbers > 0]  # false for NaN
    made = "Student's t"
    if known.size:
        fewest, most = (f"{number:.0f}" for number in (known.min(), known.max()))
        named = fewest if fewest == most else f"{fewest} to {most}"
        made = f"{named} groups of texts, Student's t"
    missing = "" if complete else " Values without one have no known error."
    if eligible is not None:
        sampled = f" and over heads, which are a random sample of {eligible:,} heads"
        return f"{what} from the variation over texts ({made}){sampled}.{missing}"
    return f"{what} from the variation over texts ({made}).{missing}"


def _sample(run: FinishedRun) -> Iterable[str]:
    config = run.settings
    equal = config.get("equal_texts") is True
    number = run.texts.get("count") or (None if equal else run.dump.get("num_examples"))
    if isinstance(number, int):
        yield count(number, "text")
    if equal:
        yield "only texts that reach the last fifth of the longest text (equal_texts)"
    if config.get("single_example") is True:
        yield "all rows of a head as one sequence (single_example)"
    if not run.path("head_metrics").exists():
        return
    if not math.isnan(run.context):
        yield f"context of {run.context:,.0f} tokens"
    groups = layers_by_type(run.layer_types)
    if len(groups) > 1:
        for name, layers in groups.items():
            yield f"layers {index_ranges(layers)}: {type_words(name)}"


def _settings(run: FinishedRun, shown: PlasticityColumns) -> Iterable[str]:
    config: Mapping[str, Any] = run.settings
    in_bins = shown is AT_ONE_POSITION
    yield from _pairs(config, in_bins)
    yield from _queries(config, run.info.get("bin_size"), in_bins)
    if config.get("seed") is not None:
        yield f"seed: {config['seed']}"


def _pairs(config: Mapping[str, Any], in_bins: bool) -> Iterable[str]:
    pairs = config.get("pair_sampling")
    if pairs in PAIR_WORDS:
        number = config.get("num_pairs_per_bin" if in_bins else "num_pairs_per_bucket")
        drawn = "per bin of queries" if in_bins else _PAIRS_OF[str(pairs)]
        how_many = f", {number:,} {drawn}" if isinstance(number, int) else ""
        reach = config.get("max_rel_dist")
        near = f", at most {reach:g} of the sequence apart" if pairs == "local" and reach else ""
        yield f"Key pairs: {pair_words(pairs, in_bins)}{near}{how_many}"


def _queries(config: Mapping[str, Any], bin_size: object, in_bins: bool) -> Iterable[str]:
    model = config.get("query_model")
    if in_bins:
        if isinstance(bin_size, int):
            yield f"bins of {bin_size:,} tokens"
    elif model:
        yield f"query_model: {model}"
