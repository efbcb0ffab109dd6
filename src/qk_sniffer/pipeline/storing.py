"""Check the vectors of the model and convert them to blocks of the dump."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qk_dump.attention_columns import AttentionRows
from qk_dump.layout import Kind
from qk_sniffer.pipeline.batches import Batch
from qk_sniffer.pipeline.optional_columns import attention_columns
from qk_sniffer.pipeline.rows import TakenRows
from qk_sniffer.pipeline.segments import Block
from qk_sniffer.pipeline.setup import Setup
from qk_sniffer.sampling.heads import WantedLayer
from qk_sniffer.sampling.rows import KINDS, KindRows
from qk_toolkit.errors import ToolkitError


def blocks_of(setup: Setup, batch: Batch, taken: TakenRows) -> list[Block]:
    """The rows of every wanted layer and kind, checked and in the precision of the dump.

    Keys are checked first: their NaN would also be in the attention of the queries.
    """
    if not len(batch.run_ids):
        return []
    return [
        _block(setup, batch, taken, layer, kind)
        for layer in setup.wanted
        for kind in reversed(KINDS)
        if layer.heads(kind)
    ]


def _block(setup: Setup, batch: Batch, taken: TakenRows, layer: WantedLayer, kind: Kind) -> Block:
    facts = layer.facts
    rows = batch.rows[facts.layer, kind]
    if (facts.layer, kind) not in taken:
        raise ToolkitError(
            f"layer {facts.layer} made no attention call for text {batch.run_ids[0]}, but it made "
            "one for the probe; the model cannot be captured. Choose another model."
        )
    vectors: npt.NDArray[Any] = taken.vectors((facts.layer, kind))  # (n, heads, d)
    example_id = batch.run_ids[rows.sequence]  # (n,)
    check_finite(vectors, example_id, facts.layer, kind)
    if setup.config.output.vector_dtype == "float16":
        with np.errstate(over="ignore"):  # `check_finite` raises the error
            vectors = vectors.astype(np.float16)
        check_finite(vectors, example_id, facts.layer, kind)
    return Block(
        layer=facts.layer,
        kind=kind,
        heads=layer.numbers(kind),
        bucket=setup.sampler.bucket(rows.position),
        example_id=example_id,
        position=rows.position,
        vectors=vectors,
        sliding_window=facts.window,
        token_str=_token_strings(setup, batch, rows),
        attention=_attention(setup, taken, layer, kind, example_id, rows),
        token_id=rows.tokens(batch.tokens.numpy()) if setup.config.capture.tokens else None,
        value_norm=_value_norm(setup, taken, layer, kind, example_id, rows),
    )


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


def _token_strings(setup: Setup, batch: Batch, rows: KindRows) -> list[str] | None:
    if not setup.config.capture.capture_token_strings:
        return None
    ids = [
        batch.token_ids[sequence][position]
        for sequence, position in zip(rows.sequence, rows.position, strict=True)
    ]
    strings: list[str] = setup.tokenizer.convert_ids_to_tokens(ids)
    return strings
