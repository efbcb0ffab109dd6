"""`qk_sniffer.tap`: capture queries and keys of a model that is already loaded."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt
from rich.filesize import decimal
from torch import Tensor, nn

from qk_dump.columns import ARGMAX_TOKEN, HEAD, TOKEN_ID, VECTOR
from qk_dump.heads import HeadId, parse_head
from qk_dump.layout import PLAN, TAP, UNFINISHED, kinds_in
from qk_dump.manifest import DumpManifest, json_text
from qk_dump.record import capture_id
from qk_dump.rows import Rows
from qk_dump.side_files import Example, write_side_files
from qk_dump.writer import write_head
from qk_sniffer.capture.description import capture_manifest
from qk_sniffer.capture.setup import (
    attended_sampler_of,
    sampler_of,
)
from qk_sniffer.config import CaptureSettings, SamplerType
from qk_sniffer.engines.hf.calls import HfCalls
from qk_sniffer.engines.hf.forward_arguments import arguments_by_name, lengths_of, tokens_of
from qk_sniffer.engines.hf.layout import HfLayout, decoder_of, text_config
from qk_sniffer.engines.hf.probe_forward import is_probe_running
from qk_sniffer.engines.hf.probing import probe
from qk_sniffer.rows.checks import stored_rows
from qk_sniffer.rows.host_rows import HostRows, empty_rows
from qk_sniffer.rows.layer_tables import Part
from qk_sniffer.rows.plan import ForwardTexts, RowPlan, text_bytes, texts_of_forward
from qk_sniffer.rows.taker import RowTaker
from qk_sniffer.sampling.bucket_counts import TEXTS_LOOKED_AT, choose
from qk_sniffer.sampling.heads import choose_heads
from qk_sniffer.sampling.positions import PositionSampler
from qk_sniffer.texts.token_texts import token_texts
from qk_toolkit.errors import ConfigError, OutputError
from qk_toolkit.files import (
    cannot_write,
    remove_drafts,
    remove_folder,
    resolved,
    staged_folder,
    user_path,
    write_text,
)
from qk_toolkit.formatting import count, index_ranges
from qk_toolkit.settings import validated

_THREADS = 8  # that write files


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


class TappedRows(Rows):
    """The captured rows of one head. Columns are attributes: `rows.position`, `rows.entropy`."""

    @property
    def vectors(self) -> npt.NDArray[np.float32]:
        """(n, d) the queries or keys."""
        return self[VECTOR]

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        """A column (n,) or (n, w)."""
        columns: dict[str, npt.NDArray[Any]] = self.__dict__.get("columns", {})
        if name not in columns:
            raise AttributeError(f"there is no column {name!r}, only {', '.join(columns)}")
        return columns[name]


def tap(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    texts: int | None = None,
    sampler: SamplerType = "auto",
    min_bucket_size: int | None = None,
    base_rate: float | None = None,
    key_base_rate: float | None = None,
    seed: int = 0,
    queries: bool = True,
    keys: bool = True,
    full_attention_only: bool = False,
    pre_rope: bool = False,
    attention: bool = True,
    tokens: bool = True,
    attended_keys: int = 0,
    say: Callable[[str], None] = _to_stderr,
) -> Tap:
    """Capture queries and keys of a transformers model: `with qk_sniffer.tap(model) as t:`.

    Every sequence of every forward in the block becomes an example. Examples are numbered from 0.
    Sequences may be padded on the right, with an `attention_mask`. The model's outputs do not
    change, and the tap is removed when the block ends.

    The sampler has the settings of a capture. By default it is `auto`: 128 queries and 512 keys per
    bucket and head from `texts` texts, 16 if it is not given, in about 16 buckets of the longest of
    the first 16 texts. When a longer one of them comes, rows of earlier texts are dropped until all
    texts have the rates of the new buckets. `sampler="all"` keeps every position. Before the first
    forward, `say` gets a line with the number of texts that `auto` assumes, or with the size of
    what `all` keeps.

    Queries have columns of their attention, such as `t.queries(layer, head).entropy`, and keys the
    length of their value, `value_norm`; `t.queries(layer, head).columns` lists the names. If the
    forward gets `input_ids`, rows also have their `token_id`, and queries the weights and numbers
    of duplicate and induction keys. `attention=False` and `tokens=False` leave these out.

    With `attended_keys=N`, about N keys per text and key head are drawn in proportion to the
    attention they receive: `t.attended(layer, head)` has those that the sampler does not keep, and
    `t.keys(layer, head).received` the attention that kept keys receive.

    Returns:
        The tap. `t.queries(layer, head)` and `t.keys(layer, head)` have `vectors` (n, d), and
            `position`, `bucket` and `example_id` (n,), where n is the number of kept positions.

    Examples:
        >>> import torch
        >>> from qk_sniffer import tap
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
        >>> model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes))  # random weights
        >>> with tap(model, texts=1) as t:
        ...     output = model(torch.tensor([[5, 6, 7]]))  # one text of three tokens
        >>> t.queries(layer=1, head=3).vectors.shape
        (3, 8)
    """
    if sampler not in get_args(SamplerType):
        expected = ", ".join(get_args(SamplerType))
        raise ConfigError(f"sampler: expected one of {expected}, got {sampler!r:.80}")
    if texts is not None and (type(texts) is not int or texts < 1):
        raise ConfigError(f"texts: expected a number from 1, got {texts!r:.80}")
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
    layout = probe(model)
    wanted = choose_heads(layout, settings)
    positions = TapPositions(settings, texts)
    plan = RowPlan(
        wanted=wanted,
        sampler=positions.sampler(()),
        attention=settings.attention,
        tokens=settings.tokens,
        attended=attended_sampler_of(settings, None),
    )
    return Tap(model, layout, plan, positions, pre_rope=pre_rope, say=say)


@dataclass(frozen=True)
class TapPositions:
    """Which positions a tap keeps. The sampler `auto` depends on the texts that came."""

    settings: CaptureSettings
    texts: int | None  # as given

    @property
    def assumed_texts(self) -> int:
        """The number of texts for which `auto` chooses."""
        return self.texts or TEXTS_LOOKED_AT

    def sampler(self, lengths: Sequence[int]) -> PositionSampler:
        """The sampler after texts of these lengths, as a capture of them would choose it."""
        if self.settings.sampler.type != "auto":
            return sampler_of(self.settings)
        longest = max([1, *lengths[:TEXTS_LOOKED_AT]])
        return sampler_of(
            self.settings, choose(self.assumed_texts, longest, self.settings.min_bucket_size)
        )

    def message(self, plan: RowPlan, lengths: Sequence[int]) -> str | None:
        """What to say before the first forward, which has texts of these lengths."""
        sampler = self.settings.sampler.type
        if sampler == "auto" and self.texts is None:
            return (
                f"tap: assumes {self.assumed_texts} texts and keeps 128 queries and 512 keys per "
                "bucket of them; texts= is another number, sampler='all' keeps every position"
            )
        if sampler != "all":
            return None
        size = sum(text_bytes(plan, length, half=False) for length in lengths)
        every = ""
        if self.texts is not None:
            whole = decimal(round(size * self.texts / len(lengths)))
            every = f", {whole} for {count(self.texts, 'text')} like these"
        return (
            f"tap: keeps every position: {decimal(round(size))} for the {sum(lengths):,} tokens of "
            f"this forward{every}, in memory and in the dump; sampler='auto' keeps a sample"
        )


class Tap:
    """The queries and keys captured so far; made by `tap`."""

    def __init__(
        self,
        model: nn.Module,
        layout: HfLayout,
        plan: RowPlan,
        positions: TapPositions,
        *,
        pre_rope: bool,
        say: Callable[[str], None],
    ) -> None:
        self.layout = layout
        self.lengths: list[int] = []  # tokens of every example
        self.model = model
        self.plan = plan
        self.pre_rope = pre_rope
        self._positions = positions
        self._say: Callable[[str], None] | None = say  # None after the first forward
        self._decoder = decoder_of(model)
        self._taker = RowTaker(plan)
        layers = {layer.facts.layer for layer in plan.wanted}
        self._calls = HfCalls(layout, layers, self._taker, pre_rope=pre_rope, rules=plan.attention)
        self._heads = frozenset(plan.heads())
        self._forwards: list[HostRows] = []
        self._lengths_now: list[int] = []  # of the sequences in the current forward
        self._model_arguments: Mapping[str, Any] | None = None  # None if the decoder runs alone
        self._stack = ExitStack()

    def __repr__(self) -> str:
        layers = index_ranges(layer.facts.layer for layer in self.plan.wanted)
        q, k = (sum(head.kind == kind for head in self.heads) for kind in ("q", "k"))
        rows = sum(taken.number_of_rows() for taken in self._forwards)
        return (
            f"<Tap {_model_name(self.model)}: layers {layers}, {q} query heads, {k} key heads, "
            f"{count(len(self.lengths), 'text')}, {count(rows, 'row')}>"
        )

    @property
    def heads(self) -> list[HeadId]:
        """The captured heads."""
        return sorted(head for head in self._heads if not head.attended)

    @property
    def attended_heads(self) -> list[HeadId]:
        """The key heads of which keys are drawn by attention."""
        return sorted(head for head in self._heads if head.attended)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._calls)
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
        return self.rows(HeadId(layer, head, "k", attended=True))

    def rows(self, head: HeadId | str) -> TappedRows:
        """The rows of a head, given as `HeadId` or by its name, such as `l00h07q`."""
        head_id = parse_head(head) if isinstance(head, str) else head
        if head_id is None or head_id not in self._heads:
            name = head if isinstance(head, str) else head.folder
            listed = "t.attended_heads" if "attended" in name else "t.heads"
            raise ConfigError(f"{name}: is not a captured head; {listed} lists the captured heads")
        parts = [
            taken.of_head(head_id) for taken in self._forwards if taken.holds(Part.of(head_id))
        ]
        return TappedRows(Rows.joined(parts or [empty_rows(self.plan, head_id)]).columns)

    def save(self, folder: str | os.PathLike[str], tokenizer: Any = None) -> Path:
        """Write the captured rows as a dump for the analysis, and return its folder.

        The folder must be new or empty. It appears when the dump is complete. With a tokenizer, the
        texts of the tokens are written to `tokens.parquet`.
        """
        place = user_path(folder)
        _require_new(place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            remove_drafts(resolved(place))
            with staged_folder(resolved(place)) as draft:
                self._write(draft, tokenizer)
                remove_folder(draft / UNFINISHED)
        except OutputError as error:  # of a file in the draft, which is removed
            if not isinstance(error.__cause__, OSError):
                raise
            raise cannot_write(place, error.__cause__) from error
        except OSError as error:
            raise cannot_write(place, error) from error
        return place

    def _write(self, folder: Path, tokenizer: Any) -> None:
        """Write all files of the dump, those of the heads in parallel."""
        known = set[int]().union(*(taken.known_attention for taken in self._forwards))
        manifest, heads = self._manifest(), self.plan.heads()
        identity = self._capture_id(manifest)
        write_text(folder / UNFINISHED / PLAN, json_text({TAP: manifest.model}))

        def write(head: HeadId) -> tuple[int, set[int]]:
            rows = self.rows(head)
            part, numbers = Part.of(head), np.full(len(rows), head.head, np.int32)
            whole = rows.with_columns({HEAD: numbers})
            stored = stored_rows(part, whole, half=False, known_attention=head.layer in known)
            write_head(folder, head, stored, identity)
            return len(stored), _tokens_in(rows)

        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            written = list(pool.map(write, heads))
        numbers = {head.folder: rows for head, (rows, _) in zip(heads, written, strict=True)}
        ids = set[int]().union(*(tokens for _, tokens in written))
        texts = token_texts(tokenizer, sorted(ids)) if tokenizer is not None and ids else None
        examples = [Example(number, number, n, "") for number, n in enumerate(self.lengths)]
        manifest = manifest.model_copy(update={"capture_id": identity, "rows": numbers})
        write_side_files(folder, manifest, heads, examples, texts)

    def _capture_id(self, manifest: DumpManifest) -> str:
        """The id of the dump. No name tells weights and texts, so rows of two heads take part."""
        vectors = hashlib.sha256()
        for head in (min(self.plan.heads()), max(self.plan.heads())):
            vectors.update(self.rows(head)[VECTOR].tobytes())
        plan = {"manifest": manifest.model_dump(mode="json"), "rows": vectors.hexdigest()}
        return capture_id(plan, ({"tokens": length} for length in self.lengths))

    def _manifest(self) -> DumpManifest:
        return capture_manifest(
            model=_model_name(self.model),
            revision=None,
            text_config=text_config(self.model),
            layout=self.layout,
            wanted=self.plan.wanted,
            sampler=self.plan.sampler,
            dtype=str(next(self.model.parameters()).dtype).removeprefix("torch."),
            pre_rope=self.pre_rope,
            lengths=self.lengths,
            num_examples=len(self.lengths),
            eligible_q_heads=sum(len(layer.q) for layer in self.plan.wanted) or None,
        )

    def _before_model(
        self, module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        self._model_arguments = arguments_by_name(module, arguments, options)

    def _before_decoder(
        self, module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        if is_probe_running(self._decoder):
            self._expect(None)
            return
        self._expect(None)
        given = arguments_by_name(module, arguments, options)
        whole_model = given if self._model_arguments is None else self._model_arguments
        self._lengths_now = lengths_of(given, whole_model)
        if self._lengths_now:
            self._require_independent_angles()
            self._say_once()
            self._expect(self._texts(tokens_of(given, whole_model)))

    def _say_once(self) -> None:
        say, self._say = self._say, None
        message = None if say is None else self._positions.message(self.plan, self._lengths_now)
        if say is not None and message is not None:
            say(message)

    def _expect(self, texts: ForwardTexts | None) -> None:
        """Set the texts of the next forward. Rows of one that did not finish are dropped."""
        self._lengths_now = [] if texts is None else list(texts.lengths)
        self._taker.expect(texts)
        self._calls.expect(self._lengths_now)

    def _texts(self, ids: Tensor | None) -> ForwardTexts:
        """The texts of a forward with these token ids (b, s)."""
        lengths, first = self._lengths_now, len(self.lengths)
        texts: list[Any] = [range(length) for length in lengths]
        if ids is not None:
            texts = [line[:length] for line, length in zip(ids.numpy(), lengths, strict=True)]
        examples = range(first, first + len(lengths))
        sampler = self._positions.sampler([*self.lengths, *lengths])
        plan = replace(self.plan, sampler=sampler)
        return texts_of_forward(plan, examples, texts, known=ids is not None)

    def _require_independent_angles(self) -> None:
        """Refuse a forward in which a text's rotary angles depend on other texts."""
        tables = self.layout.rotary_tables
        if not tables:
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

    def _decoder_ended(self, *_: object) -> None:
        """Runs after every forward, also after a failed one."""
        self._model_arguments = None

    def _after_decoder(self, module: nn.Module, arguments: object, output: object) -> None:
        if not self._lengths_now:
            return
        taken = self._taker.take()
        if taken.missing:
            raise ConfigError(
                f"layer {taken.missing[0]}: the numbers of queries and keys differ in this "
                "forward; a cache of fixed size cannot be captured, leave cache_implementation out"
            )
        if self._forwards:  # its copies from a GPU ended before this forward
            self._forwards[-1].unpin()
        self.lengths += self._lengths_now
        self._expect(None)
        sampler = self._positions.sampler(self.lengths)
        if sampler != self.plan.sampler:  # a longer text came: larger buckets for all texts
            self._forwards = [earlier.thinned(sampler) for earlier in self._forwards]
            self.plan = replace(self.plan, sampler=sampler)
        self._forwards.append(taken)


def _require_new(place: Path) -> None:
    """Refuse a place for a dump that is not a new or an empty folder."""
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{place}: is a file, not a folder; choose another folder")
    if place.is_dir() and any(place.iterdir()):
        found = "already holds a dump" if "dump" in kinds_in(place) else "is not empty"
        raise ConfigError(f"{place}: {found}; choose another folder")


def _model_name(model: nn.Module) -> str:
    return str(getattr(text_config(model), "name_or_path", "") or type(model).__name__)


def _tokens_in(rows: Rows) -> set[int]:
    """The tokens of the rows, and those of the keys with the largest weights."""
    columns = [rows[name] for name in (TOKEN_ID, ARGMAX_TOKEN) if name in rows]
    return {int(number) for column in columns for number in np.unique(column) if number >= 0}
