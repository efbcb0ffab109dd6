"""`qk_sniffer.tap`: capture queries and keys of a model that is already loaded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from qk_dump.attention_columns import ATTENTION_COLUMNS, KEY_COLUMNS, AttentionRows
from qk_dump.card import CARD_FILE, card, is_card
from qk_dump.examples import Example, write_examples
from qk_dump.layout import HeadId, Kind, parse_head
from qk_dump.manifest import MANIFEST_NAME, write_manifest
from qk_dump.tokens import write_tokens
from qk_dump.writer import write_head
from qk_sniffer.config import CaptureSettings
from qk_sniffer.model.forward_arguments import arguments_by_name, lengths_of, tokens_of
from qk_sniffer.model.layout import ModelLayout, decoder_of, text_config
from qk_sniffer.model.probe_forward import is_probe_running
from qk_sniffer.model.probing import probe
from qk_sniffer.model.tensor_parallel import refuse_tensor_parallel
from qk_sniffer.pipeline.attended_rows import AttendedTexts, DrawnKeys
from qk_sniffer.pipeline.batch_blocks import (
    check_attention,
    check_finite,
    check_received,
    unknown_received,
)
from qk_sniffer.pipeline.description import capture_manifest
from qk_sniffer.pipeline.row_tap import RowTap
from qk_sniffer.pipeline.setup import (
    attended_layers,
    attended_sampler_of,
    sampler_of,
    wanted_heads,
)
from qk_sniffer.pipeline.token_texts import token_texts
from qk_sniffer.sampling.heads import KINDS, KindRows, WantedLayer, sample_rows
from qk_sniffer.sampling.positions import PositionSampler, SamplerType
from qk_sniffer.tapped_rows import ForwardRows, TappedRows, joined_rows, tokens_in
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path, write_text
from qk_toolkit.formatting import count, index_ranges
from qk_toolkit.settings import validated

_WITHOUT_TOKENS = (*ATTENTION_COLUMNS, *KEY_COLUMNS)


def tap(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    sampler: SamplerType = "all",
    min_bucket_size: int = 128,
    base_rate: float = 1.0,
    key_base_rate: float | None = None,
    seed: int = 0,
    queries: bool = True,
    keys: bool = True,
    full_attention_only: bool = False,
    pre_rope: bool = False,
    attention: bool = False,
    tokens: bool = True,
    attended_keys: int = 0,
) -> Tap:
    """Capture queries and keys of a transformers model: `with qk_sniffer.tap(model) as t:`.

    Every sequence of every forward in the block becomes an example. Examples are numbered from 0.
    By default every position of every head is kept. The sampler has the settings of a capture.
    Sequences may be padded on the right, with an `attention_mask`. The model's outputs do not
    change, and the tap is removed when the block ends.

    With `attention=True`, `t.queries(layer, head).attention` holds where the attention of every
    kept query goes: `lse`, `max_logit`, `entropy`, `sink_mass`, `mass_by_distance`, `first_mass`
    and `argmax_position`; and `t.keys(layer, head).value_norm` the lengths of the values. If the
    forward gets `input_ids`, rows also have their `token_id`, and queries `argmax_token` and the
    weights and numbers of duplicate and induction keys. `tokens=False` leaves these out.

    With `attended_keys=N` in addition, about N keys per text and key head are drawn in proportion
    to the attention they receive: `t.attended(layer, head)` has those that the sampler does not
    keep, and `t.keys(layer, head).received` the attention that kept keys receive.

    Returns:
        The tap. `t.queries(layer, head)` and `t.keys(layer, head)` have `vectors` (n, d), and
            `position`, `bucket` and `example_id` (n,), where n is the number of kept positions.

    Examples:
        >>> import torch
        >>> from qk_sniffer import tap
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
        >>> model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes))  # random weights
        >>> with tap(model) as t:
        ...     output = model(torch.tensor([[5, 6, 7]]))  # one text of three tokens
        >>> t.queries(layer=1, head=3).vectors.shape
        (3, 8)
    """
    if sampler not in get_args(SamplerType):
        expected = ", ".join(get_args(SamplerType))
        raise ConfigError(f"sampler: expected one of {expected}, got {sampler!r:.80}")
    settings = validated(
        CaptureSettings,
        {
            "sampler": {
                "type": sampler,
                "base_rate": base_rate,
                "key_base_rate": key_base_rate,
                "seed": seed,
            },
            "min_bucket_size": min_bucket_size,
            "capture_queries": queries,
            "capture_keys": keys,
            "layers": None if layers is None else list(layers),
            "heads": None if heads is None else list(heads),
            "full_attention_only": full_attention_only,
            "capture_pre_rope": pre_rope,
            "attention": attention,
            "tokens": tokens,
            "attended_keys": attended_keys,
        },
    )
    refuse_tensor_parallel(model)
    layout = probe(model)
    return Tap(model, layout, wanted_heads(layout, settings), sampler_of(settings), settings)


class Tap:
    """The queries and keys captured so far; made by `tap`."""

    def __init__(
        self,
        model: nn.Module,
        layout: ModelLayout,
        wanted: tuple[WantedLayer, ...],
        sampler: PositionSampler,
        settings: CaptureSettings,
    ) -> None:
        self.layout = layout
        self.lengths: list[int] = []  # tokens of every example
        self.model = model
        self.wanted = wanted
        self.sampler = sampler
        self.pre_rope = settings.capture_pre_rope
        self.attention = settings.attention
        self._attended = attended_sampler_of(settings, None)
        self._attended_layers = attended_layers(wanted, layout)
        self._drawn: dict[HeadId, list[ForwardRows]] = {}  # keys drawn by attention
        self._decoder = decoder_of(model)
        self._rows = RowTap(self._decoder, wanted, pre_rope=self.pre_rope, attention=self.attention)
        self._with_tokens = settings.tokens
        self._tokens_now: Tensor | None = None  # (b, s) of the current forward
        self._expected: dict[tuple[int, Kind], KindRows] = {}
        self._lengths_now: list[int] = []  # lengths of the sequences in the current forward
        self._parts: dict[tuple[int, Kind], list[ForwardRows]] = {
            (layer.facts.layer, kind): [] for layer in wanted for kind in KINDS
        }
        self._model_arguments: Mapping[str, Any] | None = None  # None if the decoder runs alone
        self._thread: int | None = None  # the thread of the current forward
        self._thread_lock = threading.Lock()
        self._stack = ExitStack()

    def __repr__(self) -> str:
        layers = index_ranges(layer.facts.layer for layer in self.wanted)
        q, k = (sum(len(layer.heads(kind)) for layer in self.wanted) for kind in KINDS)
        rows = sum(part.vectors.shape[0] * part.vectors.shape[1] for part in self._all_parts)
        return (
            f"<Tap {_model_name(self.model)}: layers {layers}, {q} query heads, {k} key heads, "
            f"{count(len(self.lengths), 'text')}, {count(rows, 'row')}>"
        )

    @property
    def _all_parts(self) -> list[ForwardRows]:
        return [part for parts in self._parts.values() for part in parts]

    @property
    def heads(self) -> list[HeadId]:
        """The captured heads."""
        return sorted(head for layer in self.wanted for head in layer.head_ids())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._rows)
            whole = self.model.register_forward_pre_hook(self._before_model, with_kwargs=True)
            stack.callback(whole.remove)
            before = self._decoder.register_forward_pre_hook(self._before_decoder, with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(self._decoder.register_forward_hook(self._after_decoder).remove)
            ended = self._decoder.register_forward_hook(self._decoder_ended, always_call=True)
            stack.callback(ended.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def queries(self, layer: int, head: int) -> TappedRows:
        """The queries of a head."""
        return self.rows(HeadId(layer, head, "q"))

    def keys(self, layer: int, head: int) -> TappedRows:
        """The keys of a key head; several query heads share one key head."""
        return self.rows(HeadId(layer, head, "k"))

    def attended(self, layer: int, head: int) -> TappedRows:
        """The keys of a key head that were drawn by attention and that the sampler did not keep."""
        drawn = HeadId(layer, head, "k", attended=True)
        if drawn not in self.attended_heads:
            raise ConfigError(
                f"{drawn.folder}: no keys are drawn by attention of this head; "
                "t.attended_heads lists the heads"
            )
        return joined_rows(self._drawn.get(drawn, []), 0, self.layout[layer], self.sampler)

    @property
    def draws_keys(self) -> bool:
        """Whether keys are drawn by attention."""
        return self._attended is not None

    @property
    def attended_heads(self) -> list[HeadId]:
        """The key heads of which keys are drawn by attention."""
        layers = self._attended_layers if self._attended else ()
        keys = [head for head in self.heads if head.kind == "k" and head.layer in layers]
        return [head._replace(attended=True) for head in keys]

    def rows(self, head: HeadId | str) -> TappedRows:
        """The rows of a head, given as `HeadId` or by its name, such as `l00h07q`."""
        head_id = parse_head(head) if isinstance(head, str) else head
        if head_id is None or head_id not in self.heads:
            name = head if isinstance(head, str) else head.folder
            raise ConfigError(f"{name}: is not a captured head; t.heads lists the captured heads")
        layer = next(layer for layer in self.wanted if layer.facts.layer == head_id.layer)
        place = layer.heads(head_id.kind).index(head_id.head)
        parts = self._parts[head_id.layer, head_id.kind]
        return joined_rows(parts, place, layer.facts, self.sampler)

    def save(self, folder: str | os.PathLike[str], tokenizer: Any = None) -> Path:
        """Write the captured rows as a dump for the analysis, and return its folder.

        With a tokenizer, the texts of their tokens are written to `tokens.parquet`.
        """
        return _save(self, folder, tokenizer)

    def _before_model(
        self, module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        self._model_arguments = arguments_by_name(module, arguments, options)

    def _before_decoder(
        self, module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        if is_probe_running(self._decoder):
            if self._thread in (None, threading.get_ident()):
                self._drop_forward()
            return
        self._require_one_thread()
        self._drop_forward()
        given = arguments_by_name(module, arguments, options)
        whole_model = given if self._model_arguments is None else self._model_arguments
        self._lengths_now = lengths_of(given, whole_model)
        self._require_independent_angles()
        first = len(self.lengths)
        examples = range(first, first + len(self._lengths_now))
        self._expected = sample_rows(self.sampler, self.wanted, examples, self._lengths_now)
        self._tokens_now = tokens_of(given, whole_model) if self._with_tokens else None
        if self._lengths_now:
            self._rows.expect(self._expected, self._tokens_now, self._texts(examples))

    def _texts(self, examples: Sequence[int]) -> AttendedTexts | None:
        """The texts of the forward, if keys are drawn by attention."""
        if self._attended is None:
            return None
        return AttendedTexts(self._attended, examples, self._lengths_now, self._attended_layers)

    def _require_one_thread(self) -> None:
        thread = threading.get_ident()
        with self._thread_lock:
            if self._thread not in (None, thread):
                raise ConfigError(
                    "two threads run the model at the same time in one tap, which would mix the "
                    "rows of their texts; run one thread after the other"
                )
            self._thread = thread

    def _require_independent_angles(self) -> None:
        """Refuse a forward in which a text's rotary angles depend on other texts."""
        tables = self.layout.rotary_tables
        if not self._lengths_now or not tables:
            return
        if len(set(self._lengths_now)) > 1:
            raise ConfigError(
                "rotary angles of this model depend on the longest sequence of a batch; run "
                "sequences of different lengths one at a time"
            )
        if not tables.are_initial():
            raise ConfigError(
                "rotary angles of this model depend on the longest earlier sequence (rope_type "
                "dynamic); call t.layout.rotary_tables.reset() before each forward"
            )

    def _drop_forward(self) -> None:
        """Drop the rows of a forward that did not finish."""
        self._lengths_now = []
        self._rows.expect({})

    def _decoder_ended(self, *_: object) -> None:
        """Runs after every forward, also after a failed one."""
        if self._thread == threading.get_ident():
            self._thread = None
            self._model_arguments = None

    def _after_decoder(self, module: nn.Module, arguments: object, output: object) -> None:
        if not self._lengths_now or self._thread != threading.get_ident():
            return
        taken = self._rows.take()
        first = len(self.lengths)
        for key in self._expected:
            if key not in taken:
                raise ConfigError(
                    f"layer {key[0]}: the numbers of queries and keys differ in this forward; a "
                    "cache of fixed size cannot be captured, leave cache_implementation out"
                )
        ids = None if self._tokens_now is None else self._tokens_now.numpy()
        for key, rows in self._expected.items():
            attended = taken.attended(key[0]) if key[1] == "k" else None
            part = ForwardRows(
                example_id=rows.sequence + first,
                position=rows.position,
                vectors=taken.vectors(key),
                attention=taken.attention(key[0]) if key[1] == "q" else None,
                token_id=None if ids is None else rows.tokens(ids),
                value_norm=taken.value_norms(key[0]) if key[1] == "k" else None,
                received=attended.of_base(self.sampler, rows.position) if attended else None,
            )
            self._parts[key].append(part)
            if attended is not None:
                self._add_drawn(key[0], attended.of_heads(self.sampler, rows), first, ids)
        self.lengths += self._lengths_now
        self._lengths_now = []

    def _add_drawn(
        self,
        number: int,
        drawn: Iterable[DrawnKeys],
        first: int,
        ids: npt.NDArray[np.integer[Any]] | None,
    ) -> None:
        """Add the keys that were drawn by attention in a layer."""
        layer = next(layer for layer in self.wanted if layer.facts.layer == number)
        for head, keys in zip(layer.k, drawn, strict=True):
            norms = keys.value_norm
            part = ForwardRows(
                example_id=keys.rows.sequence + first,
                position=keys.rows.position,
                vectors=keys.vectors[:, None],
                attention=None,
                token_id=None if ids is None else keys.rows.tokens(ids),
                value_norm=None if norms is None else norms[:, None],
                received=keys.received[:, None],
            )
            self._drawn.setdefault(HeadId(number, head, "k", attended=True), []).append(part)


def _model_name(model: nn.Module) -> str:
    return str(getattr(text_config(model), "name_or_path", "") or type(model).__name__)


def _save(tap: Tap, folder: str | os.PathLike[str], tokenizer: Any) -> Path:
    """Write the rows of every head, `examples.parquet`, the card, and at last `dump.json`."""
    place = user_path(folder)
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{place}: is a file, not a folder; choose another folder")
    if place.is_dir() and any(
        parse_head(entry.name) or entry.name == MANIFEST_NAME for entry in place.iterdir()
    ):
        raise ConfigError(f"{place}: already holds a dump; choose another folder")
    ids: set[int] = set()
    for head in (*tap.heads, *tap.attended_heads):
        rows = tap.attended(head.layer, head.head) if head.attended else tap.rows(head)
        _save_head(tap, place, head, rows)
        ids |= tokens_in(rows)
    manifest = capture_manifest(
        model=_model_name(tap.model),
        revision=None,
        text_config=text_config(tap.model),
        layout=tap.layout,
        wanted=tap.wanted,
        sampler=tap.sampler,
        dtype=str(next(tap.model.parameters()).dtype).removeprefix("torch."),
        pre_rope=tap.pre_rope,
        lengths=tap.lengths,
        num_examples=len(tap.lengths),
        eligible_q_heads=sum(len(layer.q) for layer in tap.wanted) or None,
    )
    write_examples(
        place, [Example(number, number, length, "") for number, length in enumerate(tap.lengths)]
    )
    has_texts = tokenizer is not None and bool(ids)
    if has_texts:
        write_tokens(place, token_texts(tokenizer, sorted(ids)))
    if is_card(place / CARD_FILE) or not (place / CARD_FILE).exists():
        heads = [*tap.heads, *tap.attended_heads]
        write_text(place / CARD_FILE, card(manifest, heads, True, tokens=has_texts))
    write_manifest(place, manifest)
    return place


def _save_head(tap: Tap, place: Path, head: HeadId, rows: TappedRows) -> None:
    check_finite(rows.vectors[:, None], rows.example_id, head.layer, head.kind)
    attention, received = rows.attention, rows.received
    if attention is not None:
        check_attention(attention[:, None], rows.example_id, rows.position, head.layer, [head.head])
    elif tap.attention and head.kind == "q":
        attention = AttentionRows.unknown(len(rows), columns=_WITHOUT_TOKENS)
    if rows.value_norm is not None:
        norms = rows.value_norm[:, None, None]  # (n, 1, 1)
        check_finite(norms, rows.example_id, head.layer, "values")
    if received is not None:
        check_received(received[:, None], rows.example_id, head.layer, [head.head])
    elif tap.draws_keys and head.kind == "k":
        group = tap.layout[head.layer].group
        received = unknown_received(tap.sampler, rows.bucket, 1, group)[:, 0]
    write_head(
        place,
        head,
        bucket=rows.bucket,
        example_id=rows.example_id,
        position=rows.position,
        vectors=rows.vectors,
        sliding_window=rows.sliding_window,
        attention=attention,
        token_id=rows.token_id,
        value_norm=rows.value_norm,
        received=received,
    )
