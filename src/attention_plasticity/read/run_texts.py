"""The texts and the bins of positions of a run, from the lengths of texts and the sampler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from attention_plasticity.config import RunnerConfig
from attention_plasticity.read.bins import Bins, ExpectedQueries, bin_size, grid, texts_at
from attention_plasticity.read.texts import DumpTexts, TextList, texts_of_dump
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.positions import keep_probabilities
from qk_dump.reader import HeadRows, read_head
from qk_toolkit.arrays import Ints
from qk_toolkit.errors import ToolkitError


def run_texts(
    dump: Dump,
    layers: Iterable[int],
    config: RunnerConfig,
    show: Callable[[int, int], object] = lambda done, total: None,
) -> DumpTexts:
    """The texts and bins of a dump for a run."""
    listed, problem = TextList.of(dump)
    if config.single_example:
        texts = DumpTexts(listed=None if listed is None else listed.summary())
    else:
        texts = texts_of_dump(dump, layers, found=(listed, problem), show=show)
    lengths = None if listed is None else listed.usable_lengths
    return replace(texts, bins=bins_of_dump(dump, config, lengths))


def bins_of_dump(dump: Dump, config: RunnerConfig, lengths: Ints | None) -> Bins | None:
    """The bins of all heads of a run. They do not depend on the heads that are analysed.

    The lengths of texts are in `examples.parquet`, and the sampler is in `dump.json`. If one of
    them is missing, the rows of the first query head are used; None if no query head can be read.
    """
    rows = None
    if lengths is None or not _sampler_is_known(dump):
        rows = _first_queries(dump, config)
        if rows is None:
            return None
    if lengths is None:
        assert rows is not None
        context = math.floor(rows.position_max) + 1
    else:
        context = int(lengths.max())
    if config.bin_size != "auto":
        return Bins(config.bin_size, context)
    if rows is None:
        assert lengths is not None
        expected = _expected(dump, lengths, context, config)
    else:
        expected = ExpectedQueries(rows.position, np.ones(len(rows)))
    return Bins(bin_size(context, expected), context)


def _sampler_is_known(dump: Dump) -> bool:
    return keep_probabilities(dump.manifest, "q", np.zeros(0)).values is not None


def _expected(dump: Dump, lengths: Ints, context: int, config: RunnerConfig) -> ExpectedQueries:
    """Expected numbers of queries of a head, from the lengths of texts and the sampler."""
    positions, step = grid(context)
    rate = keep_probabilities(dump.manifest, "q", positions).values  # (n,)
    assert rate is not None
    number = rate * texts_at(lengths, positions) * step
    number *= min(1.0, config.max_tokens_per_head / max(1.0, float(number.sum())))
    return ExpectedQueries(positions.astype(np.float64), number)


def _first_queries(dump: Dump, config: RunnerConfig) -> HeadRows | None:
    """The queries of the first head that can be read."""
    for layer, head in dump.query_heads:
        try:
            rows = read_head(
                dump.require_files(HeadId(layer, head, "q")),
                max_rows=config.max_tokens_per_head,
                seed=config.seed,
                examples=False,
                vectors=False,
            )
        except ToolkitError:
            continue  # the analysis of this head gives the reason
        return rows
    return None
