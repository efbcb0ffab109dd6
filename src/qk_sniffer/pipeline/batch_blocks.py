"""Check the vectors of the model and convert them to blocks of the dump."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qk_dump.attention_columns import AttentionRows
from qk_dump.layout import Kind
from qk_dump.received_columns import ReceivedRows
from qk_sniffer.pipeline.attended_rows import DrawnKeys
from qk_sniffer.pipeline.batches import Batch
from qk_sniffer.pipeline.blocks import Block
from qk_sniffer.pipeline.expected_heads import attention_columns
from qk_sniffer.pipeline.setup import Setup
from qk_sniffer.pipeline.taken_rows import TakenRows
from qk_sniffer.sampling.heads import KINDS, KindRows, WantedLayer
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.errors import ToolkitError


def blocks_of(setup: Setup, batch: Batch, taken: TakenRows) -> list[Block]:
    """The rows of every wanted layer and kind, checked and in the precision of the dump.

    Keys are checked first: their NaN would also be in the attention of the queries.
    """
    if not len(batch.run_ids):
        return []
    return [block for layer in setup.wanted for block in _layer_blocks(setup, batch, taken, layer)]


def _layer_blocks(
    setup: Setup, batch: Batch, taken: TakenRows, layer: WantedLayer
) -> Iterator[Block]:
    """The blocks of a layer: keys, queries, and keys drawn by attention."""
    number = layer.facts.layer
    blocks = [
        _block(setup, batch, taken, layer, kind) for kind in reversed(KINDS) if layer.heads(kind)
    ]
    attended = taken.attended(number) if setup.attended else None
    for block in blocks:
        if block.kind == "k" and attended is not None:
            received = attended.of_base(setup.sampler, block.position)
            check_received(received, block.example_id, number, block.heads)
            yield replace(block, received=received)
        elif block.kind == "k" and setup.attended:
            group = setup.layout[number].group
            heads = len(block.heads)
            received = unknown_received(setup.sampler, block.bucket, heads, group)
            yield replace(block, received=received)
        else:
            yield block
    if attended is not None:
        for head, drawn in zip(
            layer.numbers("k"),
            attended.of_heads(setup.sampler, batch.rows[number, "k"]),
            strict=True,
        ):
            yield _attended_block(setup, batch, layer, head, drawn)


def _attended_block(
    setup: Setup, batch: Batch, layer: WantedLayer, head: int, drawn: DrawnKeys
) -> Block:
    """The keys of one head that were drawn by attention."""
    facts, rows = layer.facts, drawn.rows
    example_id = batch.run_ids[rows.sequence]  # (n,)
    vectors = _stored(setup, drawn.vectors[:, None], example_id, facts.layer, "k")  # (n, 1, d)
    received = drawn.received[:, None]  # (n, 1)
    check_received(received, example_id, facts.layer, (head,))
    return Block(
        layer=facts.layer,
        kind="k",
        heads=(head,),
        bucket=setup.sampler.bucket(rows.position),
        example_id=example_id,
        position=rows.position,
        vectors=vectors,
        sliding_window=facts.window,
        token_str=_token_strings(setup, batch, rows),
        token_id=_token_ids(setup, batch, rows),
        value_norm=_drawn_norms(drawn, example_id, facts.layer),
        received=received,
        attended=True,
    )


def unknown_received(
    sampler: PositionSampler, bucket: npt.NDArray[np.int64], heads: int, group: int
) -> ReceivedRows:
    """Keys of the base sample whose attention is not known; none were drawn by attention."""
    inclusion = np.repeat(sampler.rate(bucket, "k")[:, None], heads, axis=1)  # (n, heads)
    return ReceivedRows(np.full((*inclusion.shape, group), np.nan, np.float32), inclusion)


def check_received(
    found: ReceivedRows,
    example_id: npt.NDArray[np.int64],
    layer: int,
    heads: Sequence[int],
) -> None:
    """Raise an error for NaN in the attention that keys (n, heads) receive."""
    wrong = ~np.isfinite(found.received).all(axis=2)  # (n, heads)
    if wrong.any():
        row, head = np.argwhere(wrong)[0]
        raise ToolkitError(
            f"layer {layer}: NaN or infinity in the attention logits of text {example_id[row]}, "
            f"key head {heads[head]}. The model overflows: load it in bfloat16 or float32 "
            "(model.dtype). Texts finished earlier are kept."
        )


def _block(setup: Setup, batch: Batch, taken: TakenRows, layer: WantedLayer, kind: Kind) -> Block:
    facts = layer.facts
    rows = batch.rows[facts.layer, kind]
    if (facts.layer, kind) not in taken:
        raise ToolkitError(
            f"layer {facts.layer} made no attention call for text {batch.run_ids[0]}, but it made "
            "one for the probe; the model cannot be captured. Choose another model."
        )
    example_id = batch.run_ids[rows.sequence]  # (n,)
    vectors = taken.vectors((facts.layer, kind))  # (n, heads, d)
    return Block(
        layer=facts.layer,
        kind=kind,
        heads=layer.numbers(kind),
        bucket=setup.sampler.bucket(rows.position),
        example_id=example_id,
        position=rows.position,
        vectors=_stored(setup, vectors, example_id, facts.layer, kind),
        sliding_window=facts.window,
        token_str=_token_strings(setup, batch, rows),
        attention=_attention(setup, taken, layer, kind, example_id, rows),
        token_id=_token_ids(setup, batch, rows),
        value_norm=_value_norm(setup, taken, layer, kind, example_id, rows),
    )


def _stored(
    setup: Setup,
    vectors: npt.NDArray[np.float32],
    example_id: npt.NDArray[np.int64],
    layer: int,
    kind: Kind,
) -> npt.NDArray[Any]:
    """Vectors (n, heads, d) in the precision of the dump, checked."""
    check_finite(vectors, example_id, layer, kind)
    if setup.config.output.vector_dtype == "float32":
        return vectors
    with np.errstate(over="ignore"):  # `check_finite` raises the error
        half = vectors.astype(np.float16)
    check_finite(half, example_id, layer, kind)
    return half


def _attention(
    setup: Setup,
    taken: TakenRows,
    layer: WantedLayer,
    kind: Kind,
    example_id: npt.NDArray[np.int64],
    rows: KindRows,
) -> AttentionRows | None:
    """The attention columns (n, heads) of queries; NaN if the logits are not known."""
    if kind != "q" or not setup.config.capture.attention:
        return None
    wanted = attention_columns(setup.config.capture)
    found = taken.attention(layer.facts.layer)
    if found is None:
        return AttentionRows.unknown(len(rows), len(layer.q), columns=wanted)
    check_attention(found, example_id, rows.position, layer.facts.layer, layer.numbers("q"))
    return found.with_columns(wanted)


def _value_norm(
    setup: Setup,
    taken: TakenRows,
    layer: WantedLayer,
    kind: Kind,
    example_id: npt.NDArray[np.int64],
    rows: KindRows,
) -> npt.NDArray[np.float32] | None:
    """The lengths (n, heads) of the values of keys; NaN if they are not known."""
    if kind != "k" or not setup.config.capture.attention:
        return None
    found = taken.value_norms(layer.facts.layer)
    if found is None:
        return np.full((len(rows), len(layer.k)), np.nan, np.float32)
    check_finite(found[..., None], example_id, layer.facts.layer, "values")
    return found


def _drawn_norms(
    drawn: DrawnKeys, example_id: npt.NDArray[np.int64], layer: int
) -> npt.NDArray[np.float32]:
    """The lengths (n, 1) of the values of keys drawn by attention; NaN if they are not known."""
    if drawn.value_norm is None:
        return np.full((len(drawn.rows), 1), np.nan, np.float32)
    check_finite(drawn.value_norm[:, None, None], example_id, layer, "values")
    return drawn.value_norm[:, None]


def check_attention(
    found: AttentionRows,
    example_id: npt.NDArray[np.int64],
    position: npt.NDArray[np.int64],
    layer: int,
    heads: Sequence[int],
) -> None:
    """Raise an error for NaN or infinite logits of queries (n, heads)."""
    wrong = ~np.isfinite(found.lse)  # (n, heads)
    if wrong.any():
        row, head = np.argwhere(wrong)[0]
        raise ToolkitError(
            f"layer {layer}: NaN or infinity in the attention logits of text {example_id[row]}, "
            f"query head {heads[head]}, position {position[row]}. The model overflows: load it in "
            "bfloat16 or float32 (model.dtype). Texts finished earlier are kept."
        )


def check_finite(
    vectors: npt.NDArray[Any],
    example_id: npt.NDArray[np.int64],
    layer: int,
    kind: Kind | Literal["values"],
) -> None:
    """Raise an error for NaN or infinity that names the layer and the text."""
    with np.errstate(all="ignore"):
        if np.isfinite(vectors.sum(dtype=np.float32)) or np.isfinite(vectors).all():
            return
    row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=(1, 2)))[0])
    name = {"q": "queries", "k": "keys", "values": "values"}[kind]
    remedy = (
        "Values are too large for float16: set output.vector_dtype to float32"
        if vectors.dtype == np.float16
        else "The model overflows: load it in bfloat16 or float32 (model.dtype)"
    )
    raise ToolkitError(
        f"layer {layer}: NaN or infinity in the {name} of text {example_id[row]}. {remedy}. "
        "Texts finished earlier are kept."
    )


def _token_ids(setup: Setup, batch: Batch, rows: KindRows) -> npt.NDArray[np.int32] | None:
    return rows.tokens(batch.tokens.numpy()) if setup.config.capture.tokens else None


def _token_strings(setup: Setup, batch: Batch, rows: KindRows) -> list[str] | None:
    if not setup.config.capture.capture_token_strings:
        return None
    ids = [
        batch.token_ids[sequence][position]
        for sequence, position in zip(rows.sequence, rows.position, strict=True)
    ]
    strings: list[str] = setup.tokenizer.convert_ids_to_tokens(ids)
    return strings
