"""`qk_sniffer.tap`: listen to a model that is already loaded, as one does in a notebook."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from qk_dump.card import CARD_FILE, card, is_card
from qk_dump.examples import Example, write_examples
from qk_dump.layout import HeadId, Kind, parse_head
from qk_dump.manifest import MANIFEST_NAME, write_manifest
from qk_dump.writer import write_head
from qk_sniffer.config import CaptureSettings
from qk_sniffer.model.layout import ModelLayout, decoder_of, text_config
from qk_sniffer.model.probe_forward import is_probed
from qk_sniffer.model.probing import probe
from qk_sniffer.pipeline.description import capture_manifest
from qk_sniffer.pipeline.rows import KINDS, KindRows, RowTap, sample_rows
from qk_sniffer.pipeline.setup import sampler_of, wanted_heads
from qk_sniffer.pipeline.storing import check_finite
from qk_sniffer.sampling.heads import WantedLayer
from qk_sniffer.sampling.positions import PositionSampler, SamplerType
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path, write_text
from qk_toolkit.settings import validated

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TappedRows:
    """Rows of one head."""

    example_id: Ints  # (n,)
    position: Ints  # (n,)
    bucket: Ints  # (n,)
    vectors: npt.NDArray[np.float32]  # (n, d)
    sliding_window: int | None

    def __len__(self) -> int:
        return len(self.position)


def tap(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    sampler: SamplerType = "all",
    min_bucket_size: int = 128,
    base_rate: float = 1.0,
    seed: int = 0,
    queries: bool = True,
    keys: bool = True,
    full_attention_only: bool = False,
    pre_rope: bool = False,
) -> Tap:
    """Listen to a transformers model while a block runs: `with qk_sniffer.tap(model) as t:`.

    Every sequence of every forward becomes an example, numbered from 0 in the order they come. By
    default every position of every head is kept; the sampler's settings are those of a capture.
    Sequences may be padded on the right, told by `attention_mask`. The model's outputs do not
    change, and nothing of the tap stays behind.
    """
    settings = validated(
        CaptureSettings,
        {
            "sampler": {"type": sampler, "base_rate": base_rate, "seed": seed},
            "min_bucket_size": min_bucket_size,
            "capture_queries": queries,
            "capture_keys": keys,
            "layers": None if layers is None else list(layers),
            "heads": None if heads is None else list(heads),
            "full_attention_only": full_attention_only,
            "capture_pre_rope": pre_rope,
        },
    )
    layout = probe(model)
    return Tap(model, layout, wanted_heads(layout, settings), sampler_of(settings), pre_rope)


class Tap:
    """Queries and keys heard so far; made by `tap`."""

    def __init__(
        self,
        model: nn.Module,
        layout: ModelLayout,
        wanted: tuple[WantedLayer, ...],
        sampler: PositionSampler,
        pre_rope: bool,
    ) -> None:
        self.layout = layout
        self.lengths: list[int] = []  # tokens of every example
        self.model = model
        self.wanted = wanted
        self.sampler = sampler
        self.pre_rope = pre_rope
        self._decoder = decoder_of(model)
        self._rows = RowTap(self._decoder, wanted, pre_rope=pre_rope)
        self._expected: dict[tuple[int, Kind], KindRows] = {}
        self._new: list[int] = []  # lengths of the sequences now running
        self._parts: dict[tuple[int, Kind], list[_Part]] = {
            (layer.facts.layer, kind): [] for layer in wanted for kind in KINDS
        }
        self._given: Mapping[str, Any] | None = None  # arguments of the whole model's forward
        self._thread: int | None = None  # in which a forward is running
        self._thread_known = threading.Lock()
        self._stack = ExitStack()

    @property
    def heads(self) -> list[HeadId]:
        """The heads that are kept."""
        return sorted(head for layer in self.wanted for head in layer.head_ids())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._rows)
            whole = self.model.register_forward_pre_hook(self._before_all, with_kwargs=True)
            stack.callback(whole.remove)
            before = self._decoder.register_forward_pre_hook(self._before, with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(self._decoder.register_forward_hook(self._after).remove)
            ended = self._decoder.register_forward_hook(self._ended, always_call=True)
            stack.callback(ended.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def queries(self, layer: int, head: int) -> TappedRows:
        """Queries of a head."""
        return self.rows(HeadId(layer, head, "q"))

    def keys(self, layer: int, head: int) -> TappedRows:
        """Keys of a key head; query heads of a group share one."""
        return self.rows(HeadId(layer, head, "k"))

    def rows(self, head: HeadId | str) -> TappedRows:
        """Rows of a head, given as `HeadId` or by its name, such as `l00h07q`."""
        name = parse_head(head) if isinstance(head, str) else head
        if name is None or name not in self.heads:
            told = head if isinstance(head, str) else head.folder
            raise ConfigError(f"{told}: is not kept; t.heads lists those that are")
        layer = next(layer for layer in self.wanted if layer.facts.layer == name.layer)
        place = layer.heads(name.kind).index(name.head)
        parts = self._parts[name.layer, name.kind]
        width = layer.facts.width
        position = _joined([part.position for part in parts])
        return TappedRows(
            example_id=_joined([part.example_id for part in parts]),
            position=position,
            bucket=self.sampler.bucket(position),
            vectors=np.concatenate(
                [np.empty((0, width), np.float32), *(part.vectors[:, place] for part in parts)]
            ),
            sliding_window=layer.facts.window,
        )

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write what was heard as a dump, ready for the analysis."""
        return _save(self, folder)

    def _before_all(
        self, module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        self._given = _named(module, arguments, options)

    def _before(
        self, module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        if is_probed(self._decoder):
            if self._thread in (None, threading.get_ident()):
                self._forget()
            return
        self._require_one_thread()
        self._forget()
        own = _named(module, arguments, options)
        self._new = _lengths(own, own if self._given is None else self._given)
        self._require_own_angles()
        first = len(self.lengths)
        examples = range(first, first + len(self._new))
        self._expected = sample_rows(self.sampler, self.wanted, examples, self._new)
        if self._new:
            self._rows.expect(self._expected)

    def _require_one_thread(self) -> None:
        me = threading.get_ident()
        with self._thread_known:
            if self._thread not in (None, me):
                raise ConfigError(
                    "two threads run the model at once under one tap, which would mix the rows of "
                    "their texts; let one wait for the other"
                )
            self._thread = me

    def _require_own_angles(self) -> None:
        """Refuse a forward in which a text's rotary angles depend on other texts."""
        tables = self.layout.rotary_tables
        if not self._new or not tables:
            return
        if len(set(self._new)) > 1:
            raise ConfigError(
                "rotary angles of this model depend on the longest sequence of a batch; run "
                "sequences of different length one at a time"
            )
        if not tables.are_fresh():
            raise ConfigError(
                "rotary angles of this model depend on the longest earlier sequence (rope_type "
                "dynamic); call t.layout.rotary_tables.reset() before each forward"
            )

    def _forget(self) -> None:
        """Drop what a forward that failed has left."""
        self._new = []
        self._rows.expect({})

    def _ended(self, *_: object) -> None:
        """Called after every forward, also one that failed."""
        if self._thread == threading.get_ident():
            self._thread = None
            self._given = None

    def _after(self, module: nn.Module, arguments: object, output: object) -> None:
        if not self._new or self._thread != threading.get_ident():
            return
        taken = self._rows.take()
        first = len(self.lengths)
        for key in self._expected:
            if key not in taken:
                raise ConfigError(
                    f"layer {key[0]}: the forward gave no queries and keys of its own length; "
                    "a cache of fixed size (cache_implementation) cannot be tapped"
                )
        for key, rows in self._expected.items():
            self._parts[key].append(_Part(rows.sequence + first, rows.position, taken.vectors(key)))
        self.lengths += self._new
        self._new = []


@dataclass(frozen=True)
class _Part:
    """Rows of one layer and kind from one forward."""

    example_id: Ints  # (n,)
    position: Ints  # (n,)
    vectors: npt.NDArray[np.float32]  # (n, heads, d)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _named(
    module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a forward by name."""
    names = inspect.signature(module.forward).parameters
    return {**dict(zip(names, arguments, strict=False)), **options}


def _lengths(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[int]:
    """Tokens of each sequence of a decoder's forward; none when it continues from a cache.

    `own` are the decoder's arguments, `given` those of the whole model, which makes masks and
    positions for its decoder itself.
    """
    past = own.get("past_key_values")
    if past is not None and past.get_seq_length() > 0:
        return []
    inputs = (own.get("input_ids"), own.get("inputs_embeds"))
    batch, length = next(value for value in inputs if torch.is_tensor(value)).shape[:2]
    mask, places = given.get("attention_mask"), given.get("position_ids")
    lengths = [length] * batch
    if isinstance(mask, Tensor) and mask.dim() == 2:
        lengths = _unpadded(mask)
    if isinstance(places, Tensor) and places.dim() == 2:
        straight = torch.arange(length, device=places.device)  # (s,)
        rows = zip(places.expand(batch, -1), lengths, strict=True)
        if not all(torch.equal(row[:n], straight[:n]) for row, n in rows):
            raise ConfigError("position_ids: a tap counts positions from 0; leave position_ids out")
    return lengths


def _unpadded(mask: Tensor) -> list[int]:
    seen = mask.bool()  # (b, s)
    lengths = seen.sum(dim=1)  # (b,)
    right = torch.arange(seen.shape[1], device=seen.device)[None] < lengths[:, None]  # (b, s)
    if not torch.equal(seen, right):
        raise ConfigError(
            "attention_mask: sequences must be padded on the right; any other padding shifts "
            "positions. Set tokenizer.padding_side = 'right'."
        )
    return [int(length) for length in lengths]


def _save(tap: Tap, folder: str | os.PathLike[str]) -> Path:
    """Write every head's rows, `examples.parquet`, the card and `dump.json`, which comes last."""
    place = user_path(folder)
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{place}: is a file, not a folder")
    if place.is_dir() and any(
        parse_head(entry.name) or entry.name == MANIFEST_NAME for entry in place.iterdir()
    ):
        raise ConfigError(f"{place}: holds a dump already; choose another folder")
    for head in tap.heads:
        rows = tap.rows(head)
        check_finite(rows.vectors[:, None], rows.example_id, head.layer, head.kind)
        write_head(
            place,
            head,
            bucket=rows.bucket,
            example_id=rows.example_id,
            position=rows.position,
            vectors=rows.vectors,
            sliding_window=rows.sliding_window,
        )
    config = text_config(tap.model)
    manifest = capture_manifest(
        model=str(getattr(config, "name_or_path", "") or type(tap.model).__name__),
        revision=None,
        text_config=config,
        layout=tap.layout,
        wanted=tap.wanted,
        sampler=tap.sampler,
        dtype=str(next(tap.model.parameters()).dtype).removeprefix("torch."),
        pre_rope=tap.pre_rope,
        num_examples=len(tap.lengths),
    )
    write_examples(
        place, [Example(number, number, length, "") for number, length in enumerate(tap.lengths)]
    )
    if is_card(place / CARD_FILE) or not (place / CARD_FILE).exists():
        write_text(place / CARD_FILE, card(manifest, tap.heads, True))
    write_manifest(place, manifest)
    return place
