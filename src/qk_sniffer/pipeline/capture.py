"""The capture: batches of texts → the model, tapped → the dump.

Three threads share the work: one tokenises and samples what comes next, the main one runs the
model, one widens, checks and writes what the model gave. Each holds a batch or two, so memory does
not grow with the number of texts. Finished batches are on disk within a minute and are not run
again when the same command is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qk_dump.hub.commands import publish, require_target
from qk_dump.manifest import MANIFEST_NAME, read_manifest
from qk_sniffer.config import CaptureConfig
from qk_sniffer.model.layout import run_backbone
from qk_sniffer.pipeline.batches import Batch, make_batch
from qk_sniffer.pipeline.description import capture_manifest, capture_plan
from qk_sniffer.pipeline.progress import CaptureProgress
from qk_sniffer.pipeline.ranks import Ranks, ranks_from
from qk_sniffer.pipeline.rows import RowTap, TakenRows
from qk_sniffer.pipeline.segments import CaptureFolder, finish_capture, open_capture
from qk_sniffer.pipeline.setup import Setup, prepare
from qk_sniffer.pipeline.storing import blocks_of
from qk_sniffer.pipeline.summary import print_summary
from qk_sniffer.pipeline.texts import Text, batches
from qk_sniffer.pipeline.threads import BackgroundWriter, prepared_ahead
from qk_sniffer.sampling.heads import as_ranges
from qk_toolkit.errors import ConfigError, OutputError, ToolkitError
from qk_toolkit.files import user_path

_TRIES = 3  # at rows that are damaged between writing and reading


def run_capture(config: CaptureConfig) -> int:
    """Make the dump a config describes, or complete it; the exit code is returned."""
    ranks = ranks_from()
    folder = user_path(config.data_root)
    if config.output.hf_repo_id is not None:
        require_target(config.output.hf_repo_id, config.hf_branch)
    with CaptureProgress(quiet=ranks.rank > 0) as progress, memory_told():
        require_folder(folder)
        setup = prepare(config, ranks, progress.note)
        _announce(setup, progress)
        with _opened(folder, setup, ranks) as capture:
            was_complete = capture.complete
            if was_complete:
                _check_number(setup.texts.total, folder)
                progress.note(f"{folder}: is complete already; nothing to do")
            else:
                missing = _run_all(setup, capture, ranks, progress)
                if missing:
                    progress.note(
                        f"this rank is done; {missing:,} batches remain on other ranks. The last "
                        "rank to finish completes the dump; if one has died, run the same command "
                        "again."
                    )
                    return 0
    if not was_complete:
        print_summary(folder)
    if ranks.rank == 0 or not was_complete:  # of several that find it complete, one is enough
        publish_where_asked(config, folder)
    return 0


def _run_all(setup: Setup, capture: CaptureFolder, ranks: Ranks, progress: CaptureProgress) -> int:
    """Run this rank's batches and complete the dump; how many batches other ranks still have."""
    for _ in range(_TRIES):
        num_batches = run_batches(setup, capture, ranks, progress)
        missing = capture.missing(num_batches)
        if missing:
            return len(missing)
        _require_rows(setup, capture)
        if _finish(setup, capture, num_batches, progress):
            return 0
        progress.note("rows were damaged on disk; their texts are run again")
    raise ToolkitError(
        f"{capture.folder}: rows were damaged on disk {_TRIES} times. Use another disk, or run the "
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
        "capture.sampler.base_rate, or give longer texts, and add --overwrite."
    )


def publish_where_asked(config: CaptureConfig, folder: Path) -> None:
    """Push the complete dump to `output.hf_repo_id`, where one is given."""
    if config.output.hf_repo_id is not None:
        publish(folder, config.output.hf_repo_id, config.hf_branch, private=config.output.private)


def require_folder(folder: Path) -> None:
    """Make the folder now: a place that cannot be written is better known before loading."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output.data_root: {folder}: cannot be used as a folder: {error.strerror or error}"
        ) from error


@contextmanager
def memory_told() -> Iterator[None]:
    """Say what to lower when memory runs out."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ToolkitError(_OUT_OF_MEMORY.format(" ".join(str(error).split())[:200])) from error
    except RuntimeError as error:
        if "alloc" not in str(error):  # how the CPU's allocator says it
            raise
        raise ToolkitError(_OUT_OF_MEMORY.format(" ".join(str(error).split())[:200])) from error


_OUT_OF_MEMORY = (
    "out of memory ({}). Lower inference.batch_size or tokenizer.max_length, load in bfloat16 "
    "(model.dtype), use sdpa or flash attention (model.attn_implementation), or spread the model "
    "over several GPUs (model.device_map: auto). With other settings the capture begins anew "
    "(--overwrite); with the same ones, and more memory, it goes on."
)


def _announce(setup: Setup, progress: CaptureProgress) -> None:
    layers = [layer.facts.layer for layer in setup.wanted]
    q = sum(len(layer.q) for layer in setup.wanted)
    k = sum(len(layer.k) for layer in setup.wanted)
    context = f"{setup.max_length:,} tokens" if setup.max_length else "whole texts"
    progress.note(
        f"{setup.config.model.name} ({setup.loaded.dtype}, {setup.loaded.attention}): "
        f"{q} query and {k} key heads of layers {as_ranges(layers)}; {context}; "
        f"{setup.special_tokens}"
    )
    for note in _notes(setup):
        progress.note(note)


def _notes(setup: Setup) -> Iterator[str]:
    layout = setup.layout
    silent, compressed = layout.layers_without_attention, layout.compressed_layers
    selective = [layer.facts.layer for layer in setup.wanted if layer.facts.selective]
    if silent:
        yield f"layers {as_ranges(silent)} have no self-attention and are left out"
    if compressed:
        yield (
            f"layers {as_ranges(compressed)} attend to compressed keys, which are not tokens, and "
            "are left out"
        )
    if selective:
        yield (
            f"layers {as_ranges(selective)} choose by content which keys a query sees; dump.json "
            "records them as selective"
        )
    slower = setup.loaded.slower_than_float32()
    if slower > 3:
        yield (
            f"{setup.loaded.dtype} is about {slower:.0f} times slower than float32 on this CPU; "
            "--model.dtype float32 is faster"
        )
    if setup.batch_size < setup.config.inference.batch_size:
        yield (
            "rotary angles of this model depend on the longest text of a batch, so that texts are "
            "run one at a time (inference.batch_size is not used)"
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


def run_batches(
    setup: Setup, capture: CaptureFolder, ranks: Ranks, progress: CaptureProgress
) -> int:
    """Run every batch of this process that is not finished; how many there are in all."""
    counter = _Counter()
    settings = setup.config.capture
    done = sum(1 for _ in capture.digests)
    if done:
        progress.note(f"continuing: {done:,} texts are done")
    progress.start_examples(setup.texts.total, 0)
    writer = BackgroundWriter()
    tap = RowTap(
        setup.decoder,
        setup.wanted,
        pre_rope=settings.capture_pre_rope,
        max_rows=settings.max_rows_per_batch,
    )
    try:
        with ExitStack() as stack:
            stack.enter_context(tap)
            prepared = prepared_ahead(_prepared(setup, capture, ranks, counter, progress))
            stack.callback(prepared.close)
            for batch in prepared:
                setup.layout.rotary_tables.reset()
                taken = _forward(setup.decoder, tap, batch)
                writer.submit(partial(_store, setup, capture, progress, batch, taken))
        writer.wait()
        capture.flush()
    except OutputError:
        raise
    except BaseException:
        writer.close()
        capture.flush()  # whole batches only, so nothing finished is lost
        raise
    finally:
        writer.close()
        progress.stop()
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
    progress: CaptureProgress,
) -> Iterator[Batch]:
    for number, group in batches(setup.texts, setup.batch_size):
        counter.batches = number + 1
        if number in capture.finished:
            _check_unchanged(group, capture)
            progress.advance(len(group))
        elif ranks.owns(number):
            yield make_batch(setup, number, group)
        else:
            progress.advance(len(group))


def _check_unchanged(group: Sequence[Text], capture: CaptureFolder) -> None:
    for text in group:
        if capture.digests.get(text.example_id) != text.digest:
            raise ConfigError(
                f"dataset.path: text {text.example_id} (id {text.original_id!r}) has changed since "
                "this capture began; use another output.data_root, or --overwrite to start anew"
            )


def _check_number(texts: int | None, folder: Path) -> None:
    """Notice texts that came or went after the dump was complete; their content is not read."""
    manifest = read_manifest(folder / MANIFEST_NAME)
    held = manifest.num_examples if manifest else None
    if texts is not None and held is not None and texts != held:
        raise ConfigError(
            f"{folder}: holds a dump of {held:,} texts, of which the dataset now has {texts:,}; "
            "use another output.data_root, or --overwrite to start anew"
        )


def _forward(decoder: Any, tap: RowTap, batch: Batch) -> TakenRows:
    tap.expect(batch.rows)
    if batch.tokens.numel():
        try:
            run_backbone(decoder, batch.tokens)
        except (torch.OutOfMemoryError, ToolkitError):
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            if "alloc" in str(error):
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
    progress: CaptureProgress,
    batch: Batch,
    taken: TakenRows,
) -> None:
    before = capture.rows
    capture.add(batch.number, blocks_of(setup, batch, taken), batch.examples)
    tokens = sum(len(ids) for ids in batch.token_ids)
    progress.advance(len(batch.examples), tokens, capture.rows - before)


def _finish(
    setup: Setup, capture: CaptureFolder, num_batches: int, progress: CaptureProgress
) -> bool:
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
    heads = [
        (head, layer.facts.width, layer.facts.window)
        for layer in setup.wanted
        for head in layer.head_ids()
    ]
    complete = finish_capture(
        capture, num_batches, manifest=manifest, heads=heads, on_head=progress.head_written
    )
    progress.stop()
    return complete
