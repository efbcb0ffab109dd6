"""Analysis of one key head and its query heads: read, then measure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from attention_plasticity.config import RunnerConfig
from attention_plasticity.measure.head import measure_group
from attention_plasticity.measure.result import Failure, GroupResult, HeadResult
from attention_plasticity.read.group import read_group
from attention_plasticity.read.layout import head_layout
from attention_plasticity.read.repeated import with_repeated
from attention_plasticity.read.texts import DumpTexts
from qk_dump.layout import Dump
from qk_dump.rotary_file import with_rotary
from qk_dump.source import open_dump
from qk_toolkit.debugging import traceback_if_wanted
from qk_toolkit.errors import ConfigError, DumpError, ToolkitError
from qk_toolkit.formatting import index_ranges


def analyze_head(
    layer: int,
    q_head: int,
    k_head: int | None = None,
    dump: Dump | str | os.PathLike[str] | None = None,
    config: RunnerConfig | None = None,
) -> HeadResult:
    """Analyse one query head with its key head. Raises a `ToolkitError` for bad input.

    Without `k_head`, the key head is the one that the query head uses in the model.

    Returns:
        Rows of the tables. `metrics` is one row of head_metrics.csv, by column.
            `bucket_plasticity` has one row per query bucket and key bucket, `component_weights`
            one per dimension.

    Examples:
        >>> from attention_plasticity import analyze_head, open_sample
        >>> result = analyze_head(layer=0, q_head=4, dump=open_sample())
        >>> result.k_head  # query heads 3, 4 and 5 share key head 1
        1
        >>> len(result.component_weights)  # one row per dimension
        64
        >>> 0 < result.metrics["ap_overall"] < 1
        True
    """
    if dump is None:
        raise ConfigError("dump: is missing; give a dump, or the path of its folder")
    config = config or RunnerConfig()
    dump = with_repeated(dump if isinstance(dump, Dump) else open_dump(dump), config.repeated)
    dump = with_rotary(dump, config.rotary)
    if (layer, q_head) not in dump.query_heads:
        heads = [head for other, head in dump.query_heads if other == layer]
        has = f"query heads {index_ranges(heads)}" if heads else "no query heads"
        raise DumpError(
            f"{dump.path}: query head {q_head} of layer {layer} is not in the dump; the layer has "
            f"{has}"
        )
    if k_head is None:
        k_head = head_layout(dump, config).key_head_of(q_head)
    group = read_group(dump, layer, k_head, [q_head], config)
    if q_head in group.failures:
        raise group.failures[q_head]
    return measure_group(group).heads[0]


def analyze_group(
    dump: Dump,
    layer: int,
    k_head: int,
    q_heads: Sequence[int],
    config: RunnerConfig,
    texts: DumpTexts | None = None,
) -> GroupResult:
    """Analyse the query heads of one key head. A head that fails does not stop the others.

    `texts` are the texts of the whole run; without them, they are read from the dump.
    """
    try:
        group = read_group(dump, layer, k_head, q_heads, config, texts)
    except ToolkitError as error:
        return GroupResult(
            layer, k_head, [], None, _failures(layer, k_head, sorted(q_heads), error)
        )
    failed = [_failures(layer, k_head, [head], error) for head, error in group.failures.items()]
    return replace(measure_group(group), failures=[one for part in failed for one in part])


def _failures(
    layer: int, k_head: int, q_heads: Sequence[int], error: ToolkitError
) -> list[Failure]:
    text = traceback_if_wanted(error)
    return [Failure(layer, q_head, k_head, str(error), text) for q_head in q_heads]
