"""Rows of a tap: those of one forward, and those of a head from all forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qk_dump.attention_columns import AttentionRows
from qk_dump.received_columns import ReceivedRows
from qk_sniffer.model.layout import LayerFacts
from qk_sniffer.sampling.positions import PositionSampler
from qk_toolkit.arrays import Ints


@dataclass(frozen=True)
class TappedRows:
    """The captured rows of one head."""

    example_id: Ints  # (n,)
    position: Ints  # (n,)
    bucket: Ints  # (n,)
    vectors: npt.NDArray[np.float32]  # (n, d)
    sliding_window: int | None
    attention: AttentionRows | None = None  # of queries, with `attention=True`, if it is known
    token_id: npt.NDArray[np.int32] | None = None  # (n,), −1: not known; None if all are
    value_norm: npt.NDArray[np.float32] | None = None  # (n,) of keys, with `attention=True`
    received: ReceivedRows | None = None  # of keys, with `attended_keys`, if it is known

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True)
class ForwardRows:
    """The rows of one layer and kind from one forward."""

    example_id: Ints  # (n,)
    position: Ints  # (n,)
    vectors: npt.NDArray[np.float32]  # (n, heads, d)
    attention: AttentionRows | None  # (n, heads); None if not computed
    token_id: npt.NDArray[np.int32] | None  # (n,); None if not known
    value_norm: npt.NDArray[np.float32] | None  # (n, heads); None if not known
    received: ReceivedRows | None  # (n, heads); None if not computed


def joined_rows(
    parts: Sequence[ForwardRows], place: int, facts: LayerFacts, sampler: PositionSampler
) -> TappedRows:
    """The rows of the head at `place` in the parts."""
    position = _joined([part.position for part in parts])
    return TappedRows(
        example_id=_joined([part.example_id for part in parts]),
        position=position,
        bucket=sampler.bucket(position),
        vectors=np.concatenate(
            [np.empty((0, facts.width), np.float32), *(part.vectors[:, place] for part in parts)]
        ),
        sliding_window=facts.window,
        attention=_joined_attention([part.attention for part in parts], place),
        token_id=_joined_tokens(parts),
        value_norm=_joined_norms([part.value_norm for part in parts], place),
        received=_joined_received([part.received for part in parts], place),
    )


def _joined_attention(parts: Sequence[AttentionRows | None], place: int) -> AttentionRows | None:
    """The attention columns of the head at `place`; None if they are not known."""
    found = [part[:, place] for part in parts if part is not None]
    return AttentionRows.joined(found) if found and len(found) == len(parts) else None


def _joined_tokens(parts: Sequence[ForwardRows]) -> npt.NDArray[np.int32] | None:
    """The tokens of all rows, −1 where they are not known; None if no part has them."""
    if all(part.token_id is None for part in parts):
        return None
    unknown = (np.full(len(part.position), -1, np.int32) for part in parts)
    found = [part.token_id for part in parts]
    return np.concatenate(
        [other if ids is None else ids for ids, other in zip(found, unknown, strict=True)]
    )


def _joined_norms(
    parts: Sequence[npt.NDArray[np.float32] | None], place: int
) -> npt.NDArray[np.float32] | None:
    """The value norms of the key head at `place`; None if they are not known."""
    found = [part[:, place] for part in parts if part is not None]
    return np.concatenate(found) if found and len(found) == len(parts) else None


def _joined_received(parts: Sequence[ReceivedRows | None], place: int) -> ReceivedRows | None:
    """What the keys of the head at `place` receive; None if it is not known."""
    found = [part[:, place] for part in parts if part is not None]
    return ReceivedRows.joined(found) if found and len(found) == len(parts) else None


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *parts])


def tokens_in(rows: TappedRows) -> set[int]:
    """The tokens of the rows, and those of the keys with the largest weights."""
    attention = rows.attention
    columns = [rows.token_id, None if attention is None else attention.argmax_token]
    found = [np.unique(column) for column in columns if column is not None]
    return {int(number) for part in found for number in part if number >= 0}
