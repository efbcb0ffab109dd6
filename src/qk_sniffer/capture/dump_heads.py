"""The heads of a dump, the columns of their rows, and how many bytes these take."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from qk_dump.columns import HEAD, LAYER, schema_of
from qk_dump.heads import HeadId, Kind
from qk_sniffer.rows.plan import RowPlan
from qk_sniffer.sampling.heads import KINDS, WantedLayer


def head_schemas(plan: RowPlan, *, half: bool) -> dict[HeadId, pa.Schema]:
    """The columns of every head; vectors are float16 with `half`."""
    layers = {layer.facts.layer: layer for layer in plan.wanted}
    return {head: _schema(plan, layers[head.layer], head.kind, half=half) for head in plan.heads()}


def _schema(plan: RowPlan, layer: WantedLayer, kind: Kind, *, half: bool) -> pa.Schema:
    return schema_of(plan.names(kind), layer.facts.width, half=half, group=layer.facts.group)


def bytes_of_rows(plan: RowPlan, rows: Mapping[Kind, float], *, half: bool) -> float:
    """The bytes of all heads, if each has this number of rows of its kind.

    The columns `layer` and `head` take no space in a file.
    """
    total = 0.0
    for layer in plan.wanted:
        for kind in KINDS:
            fields = _schema(plan, layer, kind, half=half)
            size = sum(_width(one.type) for one in fields if one.name not in (LAYER, HEAD))
            total += len(layer.heads(kind)) * rows[kind] * size
    return total


def _width(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size * _width(kind.value_type))
    if pa.types.is_list(kind):
        return _width(kind.value_type)
    return int(kind.bit_width // 8)


def text_bytes(plan: RowPlan, length: int, *, half: bool) -> float:
    """The expected bytes of the rows of a text with this number of tokens."""
    rows = {kind: plan.sampler.expected_rows(length, kind) for kind in KINDS}
    rows["k"] += 0 if plan.attended is None else plan.attended.capacity(length)
    return bytes_of_rows(plan, rows, half=half)
