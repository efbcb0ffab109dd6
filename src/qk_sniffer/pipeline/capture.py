"""A capture from its settings to the dump: texts in batches → the model → sampled rows → files.

`run_capture` chooses where the capture runs. `run_rank` has the steps of one process. Three threads
share its work: that of `BatchScheduler` tokenises the next batch and samples its positions, the
main thread runs the model (`_forward`), and that of `BackgroundWriter` checks the rows of the
previous batch and adds them to the folder (`_store`). Each holds one or two batches, so memory does
not grow with the number of texts.

A batch is *stored* when its rows are in the memory of the folder, and *saved* when they are on
disk, at the latest a minute later. Saved batches are not run again when the command is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qk_dump.examples import read_examples
from qk_dump.manifest import MANIFEST_NAME, read_manifest
from qk_sniffer.config import CaptureConfig
from qk_sniffer.model.layout import run_backbone
from qk_sniffer.model.memory import is_out_of_memory, out_of_memory_advice
from qk_sniffer.pipeline.batch_blocks import blocks_of
from qk_sniffer.pipeline.batch_scheduler import BatchScheduler
from qk_sniffer.pipeline.batches import Batch
from qk_sniffer.pipeline.capture_folder import CaptureFolder, open_capture
from qk_sniffer.pipeline.claims import StoredBatch
from qk_sniffer.pipeline.description import capture_plan, manifest_of
from qk_sniffer.pipeline.expected_heads import expected_heads
from qk_sniffer.pipeline.publishing import publish, require_publishable
from qk_sniffer.pipeline.ranks import ANOTHER_ENDED, Ranks, is_lost_connection, ranks_from
from qk_sniffer.pipeline.result import CaptureResult
from qk_sniffer.pipeline.row_tap import RowTap
from qk_sniffer.pipeline.segment_files import DamagedSegmentError
from qk_sniffer.pipeline.setup import Setup, prepare
from qk_sniffer.pipeline.setup_notes import note_setup
from qk_sniffer.pipeline.taken_rows import TakenRows
from qk_sniffer.pipeline.threads import BackgroundWriter
from qk_sniffer.pipeline.token_texts import token_texts
from qk_sniffer.pipeline.url_target import UrlTarget
from qk_sniffer.pipeline.work_folder import plan_in
from qk_sniffer.pipeline.write_dump import write_dump
from qk_sniffer.sampling.bucket_counts import bucket_counts
from qk_toolkit.errors import ConfigError, OutputError, ToolkitError
from qk_toolkit.files import user_path
from qk_toolkit.formatting import count
from qk_toolkit.raised_in import is_our_bug
from qk_toolkit.ray_cluster import import_ray
from qk_toolkit.urls import is_remote
from qk_toolkit.watcher import Watcher

_TRIES = 3  # when rows on disk are damaged
_LESS_MEMORY = (
    "Lower inference.batch_size or tokenizer.max_length, load in bfloat16 (model.dtype), use sdpa "
    "or flash attention (model.attn_implementation), or spread the model over several GPUs "
    "(model.device_map: auto). With other settings the capture starts again (overwrite); with "
    "the same settings, and more memory, it continues."
)


def run_capture(config: CaptureConfig, watcher: Watcher | None = None) -> CaptureResult:
    """Make the dump that a config describes, or complete it, and publish it where asked for.

    Examples:
        >>> from qk_dump.source import open_dump
        >>> from qk_sniffer import make_config, run_capture
        >>> files = {"model": {"name": "model"}, "dataset": {"path": "texts"}}  # two folders
        >>> result = run_capture(make_config(files, output={"data_root": "data/mine"}))
        >>> result.complete
        True
        >>> len(open_dump(result.folder).query_heads)  # four layers, four query heads each
        16
    """
    watcher = watcher or Watcher()
    if config.engine == "ray":
        import_ray()  # before anything is written, also to a URL
    if not is_remote(config.data_root):
        return _run_on_engine(config, watcher)
    target = UrlTarget(config, watcher)
    target.take_over()  # what the URL has of this dump; another dump is refused
    with target.named_in_errors():
        result = _run_on_engine(target.work_config, target.work_watcher)
    if result.left_to_others:
        return result
    return replace(result, url=target.url, sent=target.send())


def _run_on_engine(config: CaptureConfig, watcher: Watcher) -> CaptureResult:
    if config.engine == "ray":
        from qk_sniffer.pipeline.ray_actors import run_on_ray

        return run_on_ray(config, watcher, run_rank)
    return run_rank(config, watcher, ranks_from())


def run_rank(config: CaptureConfig, watcher: Watcher, ranks: Ranks) -> CaptureResult:
    """Run the part of one process, which may be the only one: load, run batches, write the dump."""
    folder = user_path(config.data_root)
    require_publishable(config)
    with _connected(config, ranks), out_of_memory_advice(_LESS_MEMORY):
        _make_folder(folder)
        setup = _prepared(config, folder, ranks, watcher)
        note_setup(setup, watcher)
        with _opened(folder, setup, ranks) as capture:
            was_complete = capture.complete
            if was_complete:
                _check_number(setup.texts.total, folder)
                watcher.note(f"{folder}: is complete already; nothing to do")
            elif not _run_and_write(setup, capture, ranks, watcher):
                return CaptureResult(folder, left_to_others=True)
    published = None
    if ranks.rank == 0 or not was_complete:  # rank 0, or the process that has written the dump
        published = publish(config, folder, watcher)
    return CaptureResult(folder, was_complete=was_complete, published=published)


@contextmanager
def _connected(config: CaptureConfig, ranks: Ranks) -> Iterator[None]:
    """Connect the processes of a tensor parallel model."""
    if not config.model.tensor_parallel:
        yield
        return
    if ranks.world == 1:
        raise ConfigError(
            "model.tensor_parallel: there is one process; start several with torchrun, or use "
            "model.device_map: auto"
        )
    with ranks.connected("model.tensor_parallel", "use model.device_map: auto"):
        yield


def _make_folder(folder: Path) -> None:
    """Create the folder before the model is loaded, so that a wrong path fails early."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output.data_root: {folder}: cannot be used as a folder: {error.strerror or error}"
        ) from error


def _prepared(config: CaptureConfig, folder: Path, ranks: Ranks, watcher: Watcher) -> Setup:
    watcher.busy("loading texts and model")
    try:
        begun = None if config.overwrite else plan_in(folder)
        return prepare(config, ranks, watcher.note, begun)
    finally:
        watcher.stop()


@contextmanager
def _opened(folder: Path, setup: Setup, ranks: Ranks) -> Iterator[CaptureFolder]:
    """Open the folder of the capture; with `overwrite`, one process empties it for all."""
    parts = ranks.world if setup.config.model.tensor_parallel else 1
    overwrite = setup.config.overwrite
    if overwrite and ranks.rank > 0:
        ranks.wait_for_all()  # until the first process has emptied the folder
    first = ranks.rank == 0 or ranks.starts_first
    capture = open_capture(
        folder,
        capture_plan(setup, parts),
        rank=ranks.rank,
        overwrite=overwrite and first,
        parts=parts,
        alone=ranks.world == 1,
    )
    capture.flush_seconds = setup.config.output.save_seconds
    try:
        if overwrite and first:
            ranks.wait_for_all()  # the others go on
        yield capture
    finally:
        capture.close()


def _run_and_write(setup: Setup, capture: CaptureFolder, ranks: Ranks, watcher: Watcher) -> bool:
    """Run batches and write the dump. False if another process writes it."""
    together = setup.config.model.tensor_parallel
    for _ in range(_TRIES):
        if together:
            capture.finished = ranks.share(capture.finished)  # all run the same batches
        num_batches = run_batches(setup, capture, ranks, watcher)
        if together:
            ranks.share(None)  # waits until all processes have saved their heads
        missing = capture.missing(num_batches)
        if missing:
            raise ToolkitError(
                f"{capture.folder}: {len(missing):,} batches are not on disk, the first is "
                f"{missing[0]}. Run the same command again."
            )
        conversion_lock = capture.lock_to_finish()
        if conversion_lock is None:
            return False
        try:
            _require_rows(setup, capture)
            _convert(setup, capture, num_batches, watcher)
        except DamagedSegmentError as error:
            capture.remove_damaged(error)
        else:
            return True
        finally:
            conversion_lock.release()
        if together:  # the other processes have ended
            raise ToolkitError(
                f"{capture.folder}: rows on disk were damaged. Run the same command again; it runs "
                "their texts again."
            )
        watcher.note("rows on disk are damaged; their texts are run again")
    raise ToolkitError(
        f"{capture.folder}: rows on disk were damaged {_TRIES} times. Use another disk, or run the "
        "same command again."
    )


def run_batches(setup: Setup, capture: CaptureFolder, ranks: Ranks, watcher: Watcher) -> int:
    """Run the unfinished batches, or a part of them if several processes share the capture.

    Returns the number of all batches.
    """
    if capture.digests:
        done = count(len(capture.digests), "text")
        watcher.note(f"continuing: {done} {'is' if len(capture.digests) == 1 else 'are'} finished")
    watcher.start("texts", setup.texts.total, len(capture.digests), rate="tokens")
    writer = BackgroundWriter[tuple[Batch, StoredBatch]]()
    scheduler = BatchScheduler(setup, capture, ranks)
    try:
        with _row_tap(setup) as tap:
            while True:  # another round if a process has died and left batches
                with closing(scheduler.unfinished()) as unfinished:
                    for batch in unfinished:
                        setup.layout.rotary_tables.reset()  # as if it were the first text
                        taken = _forward(setup.decoder, tap, batch)
                        scheduler.computed(batch, taken)
                        writer.submit(partial(_store, setup, capture, batch, taken))
                        _report_stored(writer, scheduler, watcher)
                writer.wait()
                capture.flush()
                _report_stored(writer, scheduler, watcher)
                if not scheduler.wait_for_others():
                    break
        _report_stored(writer, scheduler, watcher)
    except OutputError:  # saving would fail again
        raise
    except BaseException:  # raised again
        writer.close()
        capture.flush()  # saves the finished batches
        raise
    finally:
        writer.close()
        scheduler.close()
        watcher.stop()
    if scheduler.is_unexpectedly_alone:
        watcher.note(f"no other process was seen in {capture.folder}; is the folder shared?")
    if scheduler.num_batches == 0:
        raise ConfigError(f"dataset.path: {setup.config.dataset.path}: holds no texts")
    return scheduler.num_batches


def _row_tap(setup: Setup) -> RowTap:
    settings = setup.config.capture
    return RowTap(
        setup.decoder,
        setup.wanted,
        pre_rope=settings.capture_pre_rope,
        attention=settings.attention,
        tokens=settings.tokens,
        max_rows=settings.max_rows_per_batch,
    )


def _forward(decoder: Any, tap: RowTap, batch: Batch) -> TakenRows:
    """Run the model on a batch and take the sampled rows."""
    tap.expect(batch.rows, batch.tokens, batch.attended)
    if batch.tokens.numel():
        try:
            run_backbone(decoder, batch.tokens)
        except ToolkitError:
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            if is_out_of_memory(error) or is_our_bug(error):
                raise
            if is_lost_connection(error):
                raise ToolkitError(ANOTHER_ENDED) from error
            ids = ", ".join(str(number) for number in batch.run_ids)
            raise ToolkitError(
                f"the model failed on text {ids} ({batch.tokens.shape[1]:,} tokens): "
                f"{' '.join(str(error).split())[:300]}"
            ) from error
    return tap.take()


def _store(
    setup: Setup, capture: CaptureFolder, batch: Batch, taken: TakenRows
) -> tuple[Batch, StoredBatch]:
    """Check the rows of a batch and add them to the memory of the folder, which saves it if due."""
    before = capture.rows
    capture.add(batch.number, blocks_of(setup, batch, taken), batch.examples)
    tokens = sum(len(ids) for ids in batch.token_ids)
    return batch, StoredBatch(batch.number, tokens, capture.rows - before)


def _report_stored(
    writer: BackgroundWriter[tuple[Batch, StoredBatch]],
    scheduler: BatchScheduler,
    watcher: Watcher,
) -> None:
    """Tell other processes and the watcher which batches were stored since the last call.

    Raises the error of a batch that could not be stored.
    """
    for batch, stored in writer.finished():
        scheduler.stored(stored)
        watcher.advance(len(batch.examples), tokens=stored.tokens, rows=stored.rows)
    for stored in scheduler.stored_by_others():
        texts = scheduler.num_texts(stored.number)
        watcher.advance(texts, tokens=stored.tokens, rows=stored.rows)


def _convert(setup: Setup, capture: CaptureFolder, num_batches: int, watcher: Watcher) -> None:
    """Convert the saved batches to the dump, and say where it has few rows."""
    try:
        write_dump(
            capture,
            num_batches,
            manifest_of(setup, capture.text_lengths()),
            expected_heads(setup),
            on_head=partial(watcher.show, "writing heads"),
            token_texts=(
                partial(token_texts, setup.tokenizer) if setup.config.capture.tokens else None
            ),
        )
    finally:
        watcher.stop()
    examples = read_examples(capture.folder)
    if examples is None or not setup.config.capture.capture_queries:
        return
    warning = bucket_counts(setup.sampler, examples["num_tokens"].to_pylist()).warning()
    if warning is not None:
        watcher.note(warning)


def _require_rows(setup: Setup, capture: CaptureFolder) -> None:
    """Refuse a dump without a single row."""
    if capture.total_rows:
        return
    sampler = setup.sampler
    raise ConfigError(
        f"capture.sampler: no position of any text was kept (type {sampler.type}, base_rate "
        f"{sampler.base_rate:g}, min_bucket_size {sampler.min_bucket_size}). Raise "
        "capture.sampler.base_rate, or give longer texts, and add --overwrite."
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
