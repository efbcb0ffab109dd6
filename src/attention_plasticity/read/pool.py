"""The captured keys of a head together with those that were drawn by attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from attention_plasticity.config import RunnerConfig
from attention_plasticity.estimate.sizes import SINK_TOKENS
from attention_plasticity.read.layout import HeadLayout, head_layout
from attention_plasticity.read.rows import Keys, require_values, scaled
from qk_dump.columns import EXAMPLE, INCLUSION, POSITION, RECEIVED, VECTOR
from qk_dump.heads import HeadId
from qk_dump.layout import Dump
from qk_dump.manifest import MANIFEST_NAME
from qk_dump.positions import keep_probabilities, thinned_inclusion
from qk_dump.reader import HeadRows, read_attended
from qk_dump.remote import DumpPath
from qk_dump.rows import Rows
from qk_toolkit.arrays import Array, Vectors
from qk_toolkit.errors import DumpError

NO_ATTENDED_KEYS = (
    "the dump does not have the attention that keys receive; capture it with capture.attended_keys"
)
_LEAST = 2.0**-149  # attention; smaller values are zero in float32


@dataclass(frozen=True)
class KeyPool:
    """Base and attended keys of a head. The weight of a row is 1/inclusion."""

    keys: Keys
    received: npt.NDArray[np.float32]  # (n, group) attention of every key; NaN where not known

    def attention(self, q_head: int) -> Array:
        """(n,) the attention that keys receive from a query head; 0 where it is not known."""
        column = self.received[:, q_head % self.received.shape[1]]
        return np.nan_to_num(column.astype(np.float64), nan=0.0)

    @property
    def of_group(self) -> Array:
        """(n,) the attention from all query heads of the group; 0 where it is not known."""
        return np.asarray(np.nan_to_num(self.received.astype(np.float64), nan=0.0).sum(axis=1))

    def pair_weight(self, attention: Array) -> Array:
        """(n,) weights of keys in attended pairs: attention over inclusion, without tokens 0–3."""
        known = (self.keys.position >= SINK_TOKENS) & (attention >= _LEAST)
        return np.where(known, attention * self.keys.weight, 0.0)


def read_pool(
    dump: Dump, layer: int, k_head: int, keys: Keys, config: RunnerConfig
) -> KeyPool | None:
    """The pool of a key head whose base keys are `keys`.

    None if the dump has no attended keys of the head, or if it is not known what keys receive.
    """
    head = HeadId(layer, k_head, "k", attended=True)
    base = keys.rows
    if RECEIVED not in base or config.single_example:
        return None
    _require_group(
        base[RECEIVED], head_layout(dump, config), dump.folders[HeadId(layer, k_head, "k")]
    )
    if head not in dump.attended:
        _require_none(dump, head)
        return None
    drawn = _read_drawn(dump, head, keys, config)
    if drawn is not None and RECEIVED not in drawn:
        return None
    rows = base if drawn is None else _joined(base, drawn)
    share = 1.0 if drawn is None else drawn.subsampled
    inclusion = _inclusion(dump, rows, base.subsampled, share)
    received = rows[RECEIVED]
    if inclusion is None or np.isnan(received).all():
        return None
    assert rows.example_id is not None
    joined = replace(
        keys,
        rows=rows,
        weight=1.0 / inclusion,
        text=rows.example_id,
        group=keys.texts.group_of(rows.example_id),
    )
    return KeyPool(joined, received)


def _read_drawn(dump: Dump, head: HeadId, keys: Keys, config: RunnerConfig) -> HeadRows | None:
    """The keys that were drawn by attention, in the units of the base keys; None without rows."""
    folder = dump.attended[head]
    rows = read_attended(
        dump, head.layer, head.head, max_rows=config.max_tokens_per_head, seed=config.seed
    )
    if rows is None:
        return None
    assert rows.example_id is not None
    require_values(rows, folder, config)
    rows.require_same_capture(keys.rows, folder)
    if rows.width != keys.rows.width:
        raise DumpError(
            f"{folder}: keys have {rows.width} dimensions, those of {head.name} have "
            f"{keys.rows.width}. Use files of one model."
        )
    keys.texts.require(rows.example_id, rows.position, folder)
    rows, exponent = scaled(rows)
    rows = rows.with_columns({VECTOR: np.ldexp(rows.vectors, exponent - keys.exponent)})
    received, base = rows.get(RECEIVED), keys.rows[RECEIVED]
    if received is not None and received.shape[1] != base.shape[1]:
        raise DumpError(
            f"{folder}: `received` has {received.shape[1]} values per row, that of {head.name} has "
            f"{base.shape[1]}. Use files of one capture."
        )
    _require_new_keys(keys.rows, rows, folder)
    return rows


def _require_group(received: Vectors, layout: HeadLayout, folder: DumpPath) -> None:
    """Raise a `DumpError` unless `received` (n, g) has a value per query head of the key head."""
    group = layout.num_q_heads // layout.num_k_heads
    if received.shape[1] != group:
        raise DumpError(
            f"{folder}: `received` has {received.shape[1]} values per key, one for each query head "
            f"of the key head, but {layout.num_q_heads} query heads and {layout.num_k_heads} key "
            f"heads are {group} ({layout.source}). Set num_q_heads and num_k_heads of the model."
        )


def _require_new_keys(base: HeadRows, drawn: HeadRows, folder: DumpPath) -> None:
    """Raise a `DumpError` if keys drawn by attention are also in the base file."""
    text, position = (
        np.concatenate([base[name], drawn[name]]) for name in (EXAMPLE, POSITION)
    )  # (n + m,)
    code = np.unique(text, return_inverse=True)[1]
    place = code * (1.0 + position.max(initial=0.0)) + position
    common = len(base) + np.flatnonzero(np.isin(place[len(base) :], place[: len(base)]))
    if len(common):
        row = common[np.argmin(place[common])]
        raise DumpError(
            f"{folder}: {len(common):,} of its {len(drawn):,} keys are also in the base file, "
            f"such as position {position[row]:.0f} of text {text[row]}. It must have further keys; "
            "copy, capture or download it again."
        )


def _require_none(dump: Dump, head: HeadId) -> None:
    """Raise a `DumpError` if the head should have keys drawn by attention.

    dump.json tells this, or other heads of the layer that have some.
    """
    others = [one.folder for one in dump.attended if one.layer == head.layer]
    if dump.recorded_rows(head) or (others and dump.recorded_rows(head) is None):
        reason = f"{others[0]} is there" if others else f"{MANIFEST_NAME} lists it"
        raise DumpError(
            f"{dump.path / head.folder}: is missing, but {reason}. Copy or download the dump "
            "again, or capture it without attended_keys."
        )


def _joined(base: HeadRows, drawn: HeadRows) -> HeadRows:
    """The rows of both, with the columns that both have."""
    parts = [
        Rows({name: one[name] for name in base.columns if name in drawn}) for one in (base, drawn)
    ]
    return base.holding(Rows.joined(parts).columns)


def _inclusion(dump: Dump, rows: HeadRows, base_share: float, drawn_share: float) -> Array | None:
    """(n,) the probability that each key is in the pool; None if it is not known."""
    inclusion: Array = rows[INCLUSION]
    if base_share == drawn_share == 1.0:
        return inclusion
    base = keep_probabilities(dump.manifest, "k", rows.position).values
    if base is None:
        return None
    return thinned_inclusion(inclusion, np.minimum(base, inclusion), base_share, drawn_share)
