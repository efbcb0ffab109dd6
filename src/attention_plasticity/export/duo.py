"""Gates per key head from far attention or static error, for DuoAttention and tools like it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_plasticity.export.content import CONFIG, Content, Writer, json_file, text_file
from attention_plasticity.export.far_attention import RECENT, far_attention, far_rule
from attention_plasticity.export.gates import GroupRule, by_key_head, gates
from attention_plasticity.export.source import ExportSource
from attention_plasticity.export.static_error import RULE, static_error
from attention_plasticity.numeric.sizes import SINK_TOKENS
from qk_toolkit.arrays import Array

FILE = "full_attention_heads.tsv"


@dataclass(frozen=True)
class DuoOptions:
    """Choices of the format."""

    group: GroupRule = "max"
    threshold: float | None = None
    share: float | None = None
    sink_size: int = SINK_TOKENS  # at least 4: their attention is not far attention
    recent_size: int = RECENT  # a power of two, at which a bin of distances begins
    run: str | None = None  # an analysis of the dump, whose static errors are used


def duo(source: ExportSource, options: DuoOptions) -> Content:
    """`full_attention_heads.tsv`, one row per layer and one column per key head."""
    if options.run is not None:
        values, heads = static_error(source, options.run)
        how = {"value": RULE, "run": options.run}
    else:
        table, heads = far_attention(source, options.recent_size)
        values = by_key_head(table, source.layout.num_k_heads, options.group)
        how = {"value": far_rule(options.recent_size)}
        how["group"] = f"{options.group} of the query heads of a key head"
    found = gates(values, options.threshold, options.share)  # (layers, key heads)
    rules = {
        **source.rules(),
        **how,
        "gates": _gate_rule(options),
        "full_attention_heads": int(np.count_nonzero(found == 1.0)),
        "key_head_values": np.round(values, 8).tolist(),
    }
    return Content(gate_files(found, options.sink_size, options.recent_size), heads, rules)


def gate_files(found: Array, sink_size: int, recent_size: int) -> dict[str, Writer]:
    """The two files of DuoAttention, of gates (layers, key heads)."""
    text = "".join("\t".join(f"{gate:.6g}" for gate in row) + "\n" for row in found)
    config = {"sink_size": sink_size, "recent_size": recent_size}
    return {FILE: text_file(text), CONFIG: json_file(config)}


def _gate_rule(options: DuoOptions) -> str:
    if options.threshold is not None:
        return f"1 for values of {options.threshold:g} or more, else 0"
    if options.share is not None:
        return f"1 for the share {options.share:g} of key heads with the largest values, else 0"
    return "the values themselves, limited to 0 to 1"
