"""The loop of a capture: texts in batches → the model → sampled rows → the dump.

Three threads share the work. One tokenises the next batch and samples its positions, the main
thread runs the model, and one checks and writes the rows of the previous batch. Each holds one or
two batches, so memory does not grow with the number of texts. Finished batches are saved within a
minute and are not run again when the command is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from qk_dump.hub.push import Pushed, push_dump, require_target
from qk_dump.manifest import MANIFEST_NAME, read_manifest
from qk_sniffer.config import CaptureConfig
from qk_sniffer.model.layout import run_backbone
from qk_sniffer.model.memory import is_out_of_memory, out_of_memory_advice
from qk_sniffer.pipeline.batches import Batch, make_batch
from qk_sniffer.pipeline.description import capture_manifest, capture_plan
from qk_sniffer.pipeline.ranks import Ranks, ranks_from
from qk_sniffer.pipeline.rows import RowTap, TakenRows
from qk_sniffer.pipeline.segments import (
    CaptureFolder,
    ExpectedHead,
    finish_capture,
    open_capture,
)
from qk_sniffer.pipeline.setup import Setup, prepare
from qk_sniffer.pipeline.storing import blocks_of
from qk_sniffer.pipeline.texts import Text, batches
from qk_sniffer.pipeline.threads import BackgroundWriter, prepared_ahead
from qk_toolkit.errors import ConfigError, OutputError, ToolkitError
from qk_toolkit.files import user_path
from qk_toolkit.formatting import index_ranges
from qk_toolkit.watcher import Watcher

_TRIES = 3  # when rows on disk are damaged


@dataclass(frozen=True)
class CaptureResult:
    """What a process of a capture has done."""

    folder: Path
    missing: int = 0  # batches that other ranks have not finished; the dump is not complete
    was_complete: bool = False  # an earlier process had completed the dump
    published: Pushed | None = None

    @property
    def complete(self) -> bool:
        """Whether the dump is complete."""
        return self.missing == 0


def run_capture(config: CaptureConfig, watcher: Watcher | None = None) -> CaptureResult:
    """Make the dump that a config describes, or complete it, and publish it where asked for."""
    watcher, ranks = watcher or Watcher(), ranks_from()
    folder = user_path(config.data_root)
    if config.output.hf_repo_id is not None:
        require_target(config.output.hf_repo_id, config.hf_branch)
    with out_of_memory_advice(_LESS_MEMORY):
        require_folder(folder)
        setup = prepare(config, ranks, watcher.note)
        _announce(setup, watcher)
        with _opened(folder, setup, ranks) as capture:
            was_complete = capture.complete
            if was_complete:
                _check_number(setup.texts.total, folder)
                watcher.note(f"{folder}: is complete already; nothing to do")
            else:
                missing = _run_all(setup, capture, ranks, watcher)
                if missing:
                    return CaptureResult(folder, missing)
    published = None
    if ranks.rank == 0 or not was_complete:  # one rank is enough where all find it complete
        published = _publish(config, folder, watcher)
    return CaptureResult(folder, 0, was_complete, published)


def _publish(config: CaptureConfig, folder: Path, watcher: Watcher) -> Pushed | None:
    output = config.output
    if output.hf_repo_id is None:
        return None
    watcher.note(f"{folder}: is complete; sending it to {output.hf_repo_id}")
    on_bytes = partial(watcher.show, "sending", in_bytes=True)
    pushed = push_dump(
        folder, output.hf_repo_id, config.hf_branch, private=output.private, on_bytes=on_bytes
    )
    for note in pushed.notes:
        watcher.note(note)
    return pushed


def _run_all(setup: Setup, capture: CaptureFolder, ranks: Ranks, watcher: Watcher) -> int:
    """Run this rank's batches and complete the dump. Returns the batches that other ranks miss."""
    for _ in range(_TRIES):
        num_batches = run_batches(setup, capture, ranks, watcher)
        missing = capture.missing(num_batches)
        if missing:
            return len(missing)
        _require_rows(setup, capture)
        if _finish(setup, capture, num_batches, watcher):
            return 0
        watcher.note("rows on disk are damaged; their texts are run again")
    raise ToolkitError(
        f"{capture.folder}: rows on disk were damaged {_TRIES} times. Use another disk, or run the "
        "same command again."
    )


def _require_rows(setup: Setup, capture: CaptureFolder) -> None:
    """Refuse a dump without a single row."""
    if capture.total_rows:
        return
    sampler = setup.config.capture.sampler
    raise ConfigError(
        f"capture.sampler: no position of any text was kept (type {sampler.type}, base_rate "
        f"{sampler.base_rate:g}, min_bucket_size {setup.sampler.min_bucket_size}). Raise "
        "capture.sampler.base_rate, or give longer texts, and set overwrite."
    )


def require_folder(folder: Path) -> None:
    """Create the folder before the model is loaded, so that a wrong path fails early."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output.data_root: {folder}: cannot be used as a folder: {error.strerror or error}"
        ) from error


_LESS_MEMORY = (
    "Lower inference.batch_size or tokenizer.max_length, load in bfloat16 (model.dtype), use sdpa "
    "or flash attention (model.attn_implementation), or spread the model over several GPUs "
    "(model.device_map: auto). With other settings the capture starts again (overwrite); with "
    "the same settings, and more memory, it continues."
)


def _announce(setup: Setup, watcher: Watcher) -> None:
    layers = [layer.facts.layer for layer in setup.wanted]
    q = sum(len(layer.q) for layer in setup.wanted)
    k = sum(len(layer.k) for layer in setup.wanted)
    context = f"{setup.max_length:,} tokens" if setup.max_length else "whole texts"
    watcher.note(
        f"{setup.config.model.name} ({setup.loaded.dtype}, {setup.loaded.attention}): "
        f"{q} query and {k} key heads of layers {index_ranges(layers)}; {context}; "
        f"{setup.special_tokens}"
    )
    for note in _notes(setup):
        watcher.note(note)


def _notes(setup: Setup) -> Iterator[str]:
    layout = setup.layout
    silent, compressed = layout.layers_without_attention, layout.compressed_layers
    selective = [layer.facts.layer for layer in setup.wanted if layer.facts.selective]
    if silent:
        yield f"layers {index_ranges(silent)} have no self-attention and are left out"
    if compressed:
        yield (
            f"layers {index_ranges(compressed)} attend to compressed keys, which are not tokens, "
            "and are left out"
        )
    if selective:
        yield (
            f"layers {index_ranges(selective)} choose by content which keys a query sees; "
            "dump.json records them as selective"
        )
    unknown = [layer.facts.layer for layer in setup.wanted if layer.facts.logits is None]
    is_eager = setup.loaded.attention == "eager"
    remedy = "" if is_eager else "; try model.attn_implementation: eager"
    if unknown and setup.config.capture.attention:
        yield (
            f"layers {index_ranges(unknown)}: the attention function computes its weights in an "
            f"unknown way ({setup.loaded.attention}), so the attention columns are null{remedy}"
        )
    slower = setup.loaded.slower_than_float32()
    if slower > 3:
        yield (
            f"{setup.loaded.dtype} is about {slower:.0f} times slower than float32 on this CPU; "
            "model.dtype: float32 is faster"
        )
    if setup.batch_size < setup.config.inference.batch_size:
        yield (
            "rotary angles of this model depend on the longest text of a batch; texts are run one "
            "at a time, and inference.batch_size has no effect"
        )


@contextmanager
def _opened(folder: Path, setup: Setup, ranks: Ranks) -> Iterator[CaptureFolder]:
    plan = capture_plan(setup.config, setup.loaded, setup.max_length, setup.batch_size)
    overwrite = setup.config.overwrite
    if overwrite and ranks.rank > 0:
        ranks.wait_for_all()
    capture = open_capture(folder, plan, rank=ranks.rank, overwrite=overwrite and ranks.rank == 0)
    capture.flush_seconds = setup.config.output.save_seconds
    try:
        if overwrite and ranks.rank == 0:
            ranks.wait_for_all()
        yield capture
    finally:
        capture.close()


def run_batches(setup: Setup, capture: CaptureFolder, ranks: Ranks, watcher: Watcher) -> int:
    """Run every unfinished batch of this rank. Returns the number of batches of all ranks."""
    counter = _Counter()
    settings = setup.config.capture
    done = sum(1 for _ in capture.digests)
    if done:
        watcher.note(f"continuing: {done:,} texts are finished")
    watcher.start("texts", setup.texts.total, rate="tokens")
    writer = BackgroundWriter()
    tap = RowTap(
        setup.decoder,
        setup.wanted,
        pre_rope=settings.capture_pre_rope,
        attention=settings.attention,
        max_rows=settings.max_rows_per_batch,
    )
    try:
        with ExitStack() as stack:
            stack.enter_context(tap)
            prepared = prepared_ahead(_prepared(setup, capture, ranks, counter, watcher))
            stack.callback(prepared.close)
            for batch in prepared:
                setup.layout.rotary_tables.reset()
                taken = _forward(setup.decoder, tap, batch)
                writer.submit(partial(_store, setup, capture, watcher, batch, taken))
        writer.wait()
        capture.flush()
    except OutputError:
        raise
    except BaseException:
        writer.close()
        capture.flush()  # saves the finished batches
        raise
    finally:
        writer.close()
        watcher.stop()
    if counter.batches == 0:
        raise ConfigError(f"dataset.path: {setup.config.dataset.path}: holds no texts")
    return counter.batches


@dataclass
class _Counter:
    batches: int = 0


def _prepared(
    setup: Setup,
    capture: CaptureFolder,
    ranks: Ranks,
    counter: _Counter,
    watcher: Watcher,
) -> Iterator[Batch]:
    for number, group in batches(setup.texts, setup.batch_size):
        counter.batches = number + 1
        if number in capture.finished:
            _check_unchanged(group, capture)
            watcher.advance(len(group))
        elif ranks.owns(number):
            yield make_batch(setup, number, group)
        else:
            watcher.advance(len(group))


def _check_unchanged(group: Sequence[Text], capture: CaptureFolder) -> None:
    for text in group:
        if capture.digests.get(text.example_id) != text.digest:
            raise ConfigError(
                f"dataset.path: text {text.example_id} (id {text.original_id!r}) has changed since "
                "this capture began; use another output.data_root, or overwrite to start again"
            )


def _check_number(texts: int | None, folder: Path) -> None:
    """Refuse when texts were added or removed after the dump was complete."""
    manifest = read_manifest(folder / MANIFEST_NAME)
    held = manifest.num_examples if manifest else None
    if texts is not None and held is not None and texts != held:
        raise ConfigError(
            f"{folder}: holds a complete dump of {held:,} texts, but the dataset now has "
            f"{texts:,}; use another output.data_root, or overwrite to start again"
        )


def _forward(decoder: Any, tap: RowTap, batch: Batch) -> TakenRows:
    tap.expect(batch.rows)
    if batch.tokens.numel():
        try:
            run_backbone(decoder, batch.tokens)
        except ToolkitError:
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            ids = ", ".join(str(number) for number in batch.run_ids)
            raise ToolkitError(
                f"the model failed on text {ids} ({batch.tokens.shape[1]:,} tokens): "
                f"{' '.join(str(error).split())[:300]}"
            ) from error
    return tap.take()


def _store(
    setup: Setup,
    capture: CaptureFolder,
    watcher: Watcher,
    batch: Batch,
    taken: TakenRows,
) -> None:
    before = capture.rows
    capture.add(batch.number, blocks_of(setup, batch, taken), batch.examples)
    tokens = sum(len(ids) for ids in batch.token_ids)
    watcher.advance(len(batch.examples), tokens=tokens, rows=capture.rows - before)


def _finish(setup: Setup, capture: CaptureFolder, num_batches: int, watcher: Watcher) -> bool:
    config = setup.config
    manifest = capture_manifest(
        model=config.model.name,
        revision=setup.loaded.commit or config.model.revision,
        text_config=setup.loaded.text_config,
        layout=setup.layout,
        wanted=setup.wanted,
        sampler=setup.sampler,
        dtype=setup.loaded.dtype,
        pre_rope=config.capture.capture_pre_rope,
    )
    complete = finish_capture(
        capture,
        num_batches,
        manifest=manifest,
        heads=expected_heads(setup),
        on_head=partial(watcher.show, "writing heads"),
    )
    watcher.stop()
    return complete


def expected_heads(setup: Setup) -> list[ExpectedHead]:
    """The heads of the dump."""
    return [
        ExpectedHead(
            head, layer.facts.width, layer.facts.window, setup.config.has_attention(head.kind)
        )
        for layer in setup.wanted
        for head in layer.head_ids()
    ]
