"""The loop of a capture: texts in batches → the model → sampled rows → the dump.

Three threads share the work. One tokenises the next batch and samples its positions, the main
thread runs the model, and one checks and writes the rows of the previous batch. Each holds one or
two batches, so memory does not grow with the number of texts. Finished batches are saved within a
minute and are not run again when the command is repeated. Several processes may share a capture;
`scheduler` decides which of them runs a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from qk_dump.examples import read_examples
from qk_dump.manifest import MANIFEST_NAME, read_manifest
from qk_sniffer.config import CaptureConfig
from qk_sniffer.model.layout import run_backbone
from qk_sniffer.model.memory import is_out_of_memory, out_of_memory_advice
from qk_sniffer.pipeline.at_url import capture_to_url
from qk_sniffer.pipeline.batch_scheduler import BatchScheduler, longest_first
from qk_sniffer.pipeline.batches import Batch
from qk_sniffer.pipeline.claims import Claims
from qk_sniffer.pipeline.description import capture_manifest, capture_plan
from qk_sniffer.pipeline.optional_columns import optional_columns
from qk_sniffer.pipeline.publishing import publish, require_publishable
from qk_sniffer.pipeline.ranks import ANOTHER_ENDED, Ranks, is_lost_connection, ranks_from
from qk_sniffer.pipeline.result import CaptureResult
from qk_sniffer.pipeline.rows import RowTap
from qk_sniffer.pipeline.segments import (
    CaptureFolder,
    ExpectedHead,
    finish_capture,
    open_capture,
)
from qk_sniffer.pipeline.setup import Setup, eligible_q_heads, prepare
from qk_sniffer.pipeline.storing import blocks_of
from qk_sniffer.pipeline.taken_rows import TakenRows
from qk_sniffer.pipeline.threads import BackgroundWriter
from qk_sniffer.pipeline.token_texts import token_texts
from qk_sniffer.pipeline.work_folder import plan_in
from qk_sniffer.sampling.bucket_counts import bucket_counts
from qk_toolkit.errors import ConfigError, OutputError, ToolkitError
from qk_toolkit.files import user_path
from qk_toolkit.formatting import count, index_ranges
from qk_toolkit.ray_cluster import import_ray
from qk_toolkit.urls import is_remote
from qk_toolkit.watcher import Watcher

_TRIES = 3  # when rows on disk are damaged


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
    if is_remote(config.data_root):
        return capture_to_url(config, watcher, run_capture)
    if config.engine == "ray":
        from qk_sniffer.pipeline.ray_actors import run_on_ray

        return run_on_ray(config, watcher, run_rank)
    return run_rank(config, watcher, ranks_from())


def run_rank(config: CaptureConfig, watcher: Watcher, ranks: Ranks) -> CaptureResult:
    """Run the part of one process, which may be the only one."""
    if config.model.tensor_parallel:
        if ranks.world == 1:
            raise ConfigError(
                "model.tensor_parallel: there is one process; start several with torchrun, or use "
                "model.device_map: auto"
            )
        with ranks.connected("model.tensor_parallel", "use model.device_map: auto"):
            return _run_connected(config, watcher, ranks)
    return _run_connected(config, watcher, ranks)


def _run_connected(config: CaptureConfig, watcher: Watcher, ranks: Ranks) -> CaptureResult:
    folder = user_path(config.data_root)
    require_publishable(config)
    with out_of_memory_advice(_LESS_MEMORY):
        require_folder(folder)
        watcher.busy("loading texts and model")
        try:
            begun = None if config.overwrite else plan_in(folder)
            setup = prepare(config, ranks, watcher.note, begun)
        finally:
            watcher.stop()
        _announce(setup, watcher)
        with _opened(folder, setup, ranks) as capture:
            was_complete = capture.complete
            if was_complete:
                _check_number(setup.texts.total, folder)
                watcher.note(f"{folder}: is complete already; nothing to do")
            else:
                if not _run_all(setup, capture, ranks, watcher):
                    return CaptureResult(folder, left_to_others=True)
    published = None
    if ranks.rank == 0 or not was_complete:  # one rank is enough where all find it complete
        published = publish(config, folder, watcher)
    return CaptureResult(folder, False, was_complete, published)


def _run_all(setup: Setup, capture: CaptureFolder, ranks: Ranks, watcher: Watcher) -> bool:
    """Run batches and complete the dump. False if another process completes it."""
    together = setup.config.model.tensor_parallel
    for _ in range(_TRIES):
        if together:
            capture.finished = ranks.share(capture.finished)
        num_batches = run_batches(setup, capture, ranks, watcher)
        if together:
            ranks.share(None)  # all processes have saved their heads
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
            if _finish(setup, capture, num_batches, watcher, conversion_lock):
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
    layers = [layer.facts.layer for layer in setup.dump_heads]
    q = sum(len(layer.q) for layer in setup.dump_heads)
    k = sum(len(layer.k) for layer in setup.dump_heads)
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
    if setup.choice is not None:
        yield setup.choice.describe(setup.config.capture.min_bucket_size)
    silent, compressed = layout.layers_without_attention, layout.compressed_layers
    selective = [layer.facts.layer for layer in setup.dump_heads if layer.facts.selective]
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
    yield from _rotary_notes(setup)
    unknown = [layer.facts.layer for layer in setup.dump_heads if layer.facts.logits is None]
    is_eager = setup.loaded.attention == "eager"
    remedy = "" if is_eager else "; try model.attn_implementation: eager"
    if unknown and setup.config.capture.attention:
        yield (
            f"layers {index_ranges(unknown)}: the attention function computes its weights in an "
            f"unknown way ({setup.loaded.attention}), so the attention columns are null{remedy}"
        )
    numbers = {layer.facts.layer for layer in setup.dump_heads} - {*unknown}
    apart = sorted(numbers - setup.attended_layers)
    if apart and setup.attended:
        yield (
            f"layers {index_ranges(apart)}: no process has all query heads of a key head, so no "
            "keys are drawn by attention there"
        )
    if setup.config.model.tensor_parallel and setup.wanted == setup.dump_heads:
        yield (
            "model.tensor_parallel: transformers does not spread the heads of this model; every "
            "process has all of them"
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


def _rotary_notes(setup: Setup) -> Iterator[str]:
    """Layers whose rotation is not known, by reason."""
    reasons: dict[str, list[int]] = {}
    for layer in setup.dump_heads:
        found = layer.facts.rotation(setup.config.capture.capture_pre_rope)
        if found.problem is not None:
            reasons.setdefault(found.problem, []).append(layer.facts.layer)
    for problem, layers in reasons.items():
        yield f"layers {index_ranges(layers)} have no rotary record: {problem}"


@contextmanager
def _opened(folder: Path, setup: Setup, ranks: Ranks) -> Iterator[CaptureFolder]:
    parts = ranks.world if setup.config.model.tensor_parallel else 1
    plan = capture_plan(
        setup.config,
        setup.loaded,
        setup.max_length,
        setup.batch_size,
        parts,
        choice=setup.choice,
        attended_keys=setup.attended.number if setup.attended else 0,
    )
    overwrite = setup.config.overwrite
    if overwrite and ranks.rank > 0:
        ranks.wait_for_all()
    first = ranks.rank == 0 or ranks.starts_first
    discard, alone = overwrite and first, ranks.world == 1
    capture = open_capture(
        folder, plan, rank=ranks.rank, overwrite=discard, parts=parts, alone=alone
    )
    capture.flush_seconds = setup.config.output.save_seconds
    try:
        if overwrite and first:
            ranks.wait_for_all()
        yield capture
    finally:
        capture.close()


def run_batches(setup: Setup, capture: CaptureFolder, ranks: Ranks, watcher: Watcher) -> int:
    """Run the unfinished batches, or a part of them if several processes share the capture.

    Returns the number of all batches.
    """
    if capture.digests:
        watcher.note(f"continuing: {count(len(capture.digests), 'text')} finished")
    watcher.start("texts", setup.texts.total, len(capture.digests), rate="tokens")
    writer = BackgroundWriter()
    scheduler = BatchScheduler(setup, capture, watcher, ranks.knows_folder_is_shared)
    shares_texts = ranks.world > 1 and not setup.config.model.tensor_parallel
    claims = _claims(setup, capture) if shares_texts else None

    def save() -> None:
        writer.wait()
        capture.flush()

    try:
        run = scheduler.shared(claims, save) if claims else scheduler.in_order()
        with _row_tap(setup) as tap, closing(run):
            for batch in run:
                setup.layout.rotary_tables.reset()
                taken = _forward(setup.decoder, tap, batch)
                if claims:
                    taken.wait()  # a batch that waits for the GPU could be run by another process
                    claims.computed(batch.number)
                writer.submit(partial(_store, setup, capture, watcher, batch, taken, claims))
        save()
    except OutputError:
        raise
    except BaseException:
        writer.close()
        capture.flush()  # saves the finished batches
        raise
    finally:
        writer.close()
        if claims:
            claims.close()
        watcher.stop()
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


def _claims(setup: Setup, capture: CaptureFolder) -> Claims:
    order = None
    if setup.texts.has_index:
        order = longest_first(setup.texts.sizes(), setup.batch_size)
    return Claims(capture.folder, capture.saved_batches, order)


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
    tap.expect(batch.rows, batch.tokens, batch.attended)
    if batch.tokens.numel():
        try:
            run_backbone(decoder, batch.tokens)
        except ToolkitError:
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            if is_out_of_memory(error):
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
    setup: Setup,
    capture: CaptureFolder,
    watcher: Watcher,
    batch: Batch,
    taken: TakenRows,
    claims: Claims | None,
) -> None:
    before = capture.rows
    capture.add(batch.number, blocks_of(setup, batch, taken), batch.examples)
    tokens, rows = sum(len(ids) for ids in batch.token_ids), capture.rows - before
    if claims:
        claims.stored(batch.number, tokens, rows)
    watcher.advance(len(batch.examples), tokens=tokens, rows=rows)


def _finish(
    setup: Setup,
    capture: CaptureFolder,
    num_batches: int,
    watcher: Watcher,
    conversion_lock: FileLock,
) -> bool:
    config = setup.config
    made = config.dataset.made
    manifest = capture_manifest(
        model=setup.loaded.title,
        revision=setup.loaded.commit or config.model.revision,
        text_config=setup.loaded.text_config,
        layout=setup.layout,
        wanted=setup.dump_heads,
        sampler=setup.sampler,
        dtype=setup.loaded.dtype,
        pre_rope=config.capture.capture_pre_rope,
        eligible_q_heads=eligible_q_heads(setup.layout, config.capture),
        synthetic=made.as_record() if made is not None else None,
        random_weights=config.model.random_weights or None,
        lengths=capture.text_lengths(),
    )
    complete = finish_capture(
        capture,
        num_batches,
        manifest=manifest,
        heads=expected_heads(setup),
        conversion_lock=conversion_lock,
        on_head=partial(watcher.show, "writing heads"),
        token_texts=partial(token_texts, setup.tokenizer) if config.capture.tokens else None,
    )
    watcher.stop()
    if complete:
        _note_few_rows(setup, capture.folder, watcher)
    return complete


def _note_few_rows(setup: Setup, folder: Path, watcher: Watcher) -> None:
    """Say in which buckets the dump has too few queries for the analysis."""
    examples = read_examples(folder)
    if examples is None or not setup.config.capture.capture_queries:
        return
    warning = bucket_counts(setup.sampler, examples["num_tokens"].to_pylist()).warning()
    if warning is not None:
        watcher.note(warning)


def expected_heads(setup: Setup) -> list[ExpectedHead]:
    """The heads of the dump."""
    heads = []
    for layer in setup.dump_heads:
        facts = layer.facts
        for head in layer.head_ids():
            received = setup.attended is not None and head.kind == "k"
            optional = optional_columns(setup.config.capture, head.kind, received=received)
            group = facts.group if received else 0
            expected = ExpectedHead(head, facts.width, facts.window, optional, group)
            heads.append(expected)
            if received and facts.layer in setup.attended_layers:
                heads.append(expected._replace(head=head._replace(attended=True)))
    return heads
