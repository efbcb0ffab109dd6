"""A capture from its settings to the dump: texts in batches → the model → sampled rows → files.

`run_capture` chooses where the capture runs. `run_rank` has the steps of one process: prepare, open
the folder, work, finish, publish. Three threads share the work: one claims chunks and makes
batches, the main thread runs the model (`_forward`), one checks rows and writes chunks (`_store`).
Each holds one or two batches, so memory does not grow with the number of texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from qk_dump.columns import table_of
from qk_dump.manifest import MANIFEST_NAME, read_manifest
from qk_sniffer.capture.description import capture_plan, manifest_of, outline_of
from qk_sniffer.capture.finish import finish
from qk_sniffer.capture.folder import (
    CaptureFolder,
    made_folder,
    open_capture,
    plan_in,
    unfinished_capture,
)
from qk_sniffer.capture.ranks import Ranks, ranks_from
from qk_sniffer.capture.refusals import refuse_other_settings, refuse_used_folder
from qk_sniffer.capture.result import CaptureResult
from qk_sniffer.capture.segments import read_segments, saved_chunks
from qk_sniffer.capture.send import UrlTarget, publish, require_publishable
from qk_sniffer.capture.setup import Setup, note_setup, prepare
from qk_sniffer.capture.threads import BackgroundWriter, prepared_ahead
from qk_sniffer.capture.work import Batch, Step, Work, chunk_size
from qk_sniffer.config import CaptureConfig
from qk_sniffer.engines.hf.loading import load_tokenizer
from qk_sniffer.engines.hf.memory import is_out_of_memory, out_of_memory_advice
from qk_sniffer.extras import require_vllm
from qk_sniffer.rows.checks import stored_rows
from qk_sniffer.rows.layer_tables import LayerTable, Part
from qk_sniffer.rows.source import Taken
from qk_sniffer.sampling.bucket_counts import bucket_counts
from qk_sniffer.texts.token_texts import token_texts
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import user_path
from qk_toolkit.formatting import count
from qk_toolkit.raised_in import is_our_bug
from qk_toolkit.ray_cluster import import_ray
from qk_toolkit.urls import is_remote
from qk_toolkit.watcher import Watcher

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
    world = ranks_from().world
    if config.overwrite and world > 1:
        raise ConfigError(
            f"overwrite: {world} processes would empty the folder at different times; remove "
            f"{config.data_root} first, and leave overwrite out"
        )
    if config.ray is not None:
        import_ray()  # before anything is written, also to a URL
    if config.engine == "vllm":
        require_vllm()
    require_publishable(config)
    if not is_remote(config.data_root):
        result = _run_on_engine(config, watcher)
        if result.left_to_others or (result.was_complete and ranks_from().rank > 0):
            return result  # rank 0 publishes, or the process that has written the dump
        return replace(result, published=publish(config, result.folder, watcher))
    target = UrlTarget(config, watcher)
    target.begin()  # another dump at the URL is refused
    with target.named_in_errors():
        result = _run_on_engine(target.work_config, watcher)
    if result.left_to_others:
        return result
    return replace(result, url=target.url, sent=target.send())


def _run_on_engine(config: CaptureConfig, watcher: Watcher) -> CaptureResult:
    if config.finish:
        return _finish_only(config, watcher)
    if config.ray is not None:
        from qk_sniffer.capture.ray_ranks import run_on_ray

        return run_on_ray(config, config.ray, watcher, run_rank)
    return run_rank(config, watcher, ranks_from())


def _finish_only(config: CaptureConfig, watcher: Watcher) -> CaptureResult:
    """Complete the dump of a capture whose texts are all captured. No model is loaded."""
    folder = user_path(config.data_root)
    capture = unfinished_capture(folder)
    outline = capture.outline
    if outline is None:
        watcher.note(f"{folder}: is complete already; nothing to do")
        return CaptureResult(folder, was_complete=True)
    if outline.manifest is None or outline.texts is None:
        missing = "the lengths" if outline.manifest is None else "the number"
        raise ConfigError(
            f"finish: {folder}: dump.json depends on {missing} of the texts. Run the command of "
            "the capture without finish, where the model is."
        )
    lock = capture.lock_to_finish()
    if lock is None:
        raise ConfigError(f"finish: {folder}: another process writes the dump; wait until it ends")
    texts = None
    try:
        if outline.tokens:
            texts = partial(token_texts, load_tokenizer(config.tokenizer, config.model))
        chunks = len(saved_chunks(folder))
        captured = sum(len(segment.examples) for segment in read_segments(folder))
        if captured < outline.texts:
            raise ConfigError(
                f"finish: {folder}: {captured:,} of {outline.texts:,} texts are captured. Run the "
                "command of the capture without finish, where the model is."
            )
        on_head = partial(watcher.show, "writing heads")
        facts = (outline.tables, outline.manifest)
        finish(capture, chunks, *facts, on_head=on_head, token_texts=texts)
    finally:
        watcher.stop()
        lock.release()
    return CaptureResult(folder)


def run_rank(config: CaptureConfig, watcher: Watcher, ranks: Ranks) -> CaptureResult:
    """Run the part of one process, which may be the only one."""
    folder = user_path(config.data_root)
    refuse_used_folder(folder, config.dataset.path)
    with made_folder(folder), out_of_memory_advice(_LESS_MEMORY):
        setup = _prepared(config, folder, ranks, watcher)
        note_setup(setup, watcher)
        plan, outline = capture_plan(setup), outline_of(setup, chunk_size(setup))
        capture = open_capture(folder, plan, outline, overwrite=config.overwrite)
        was_complete = capture.complete
        if was_complete:
            _check_number(setup.texts.total, folder)
            watcher.note(f"{folder}: is complete already; nothing to do")
        elif not _work_and_finish(setup, capture, ranks, watcher):
            return CaptureResult(folder, left_to_others=True)
    return CaptureResult(folder, was_complete=was_complete)


def _prepared(config: CaptureConfig, folder: Path, ranks: Ranks, watcher: Watcher) -> Setup:
    watcher.busy("loading texts and model")
    try:
        begun = None if config.overwrite else plan_in(folder)
        if begun is not None:
            refuse_other_settings(folder, config, begun)
        return prepare(config, ranks, watcher.note, begun)
    finally:
        watcher.stop()


def _work_and_finish(setup: Setup, capture: CaptureFolder, ranks: Ranks, watcher: Watcher) -> bool:
    """Run chunks and write the dump. False if another process writes it."""
    work = Work(setup, capture, ranks.world - 1)
    run_chunks(work, watcher)
    if ranks.world > 1 and not (work.saw_others or ranks.knows_folder_is_shared):
        watcher.note(f"no other process was seen in {capture.folder}; is the folder shared?")
    lock = capture.lock_to_finish()
    if lock is None:
        return False
    try:
        _finish(work, watcher)
    finally:
        lock.release()
    return True


def run_chunks(work: Work, watcher: Watcher) -> None:
    """Run the chunks that no other process runs, and wait for those of others."""
    setup, done = work.setup, work.texts_done
    if done:
        watcher.note(f"continuing: {count(done, 'text')} {'is' if done == 1 else 'are'} finished")
    watcher.start("texts", setup.texts.total, done, rate="tokens")
    writer = BackgroundWriter[tuple[Batch, int]]()
    report = partial(_report, work, writer, watcher)
    try:
        while True:  # another round if a process has died and left chunks
            with closing(prepared_ahead(work.steps())) as steps:
                for step in steps:
                    _run_step(step, work, writer)
                    report()
            writer.wait()
            report()
            if not work.wait(report):
                break
    finally:
        writer.close()
        work.close()
        watcher.stop()
    if work.num_chunks == 0:
        raise ConfigError(f"dataset.path: {setup.config.dataset.path}: holds no texts")


def _run_step(step: Step, work: Work, writer: BackgroundWriter[tuple[Batch, int]]) -> None:
    """Run the model on a batch; its rows are stored in the background."""
    taken = _forward(work.setup, step.batch)
    writer.submit(partial(_store, step, work.tables, taken))


def _forward(setup: Setup, batch: Batch) -> Taken | None:
    """Run the model on a batch and take the sampled rows; None without texts to run."""
    if not batch.token_ids:
        return None
    try:
        return setup.row_source.take(batch.texts, batch.token_ids)
    except ToolkitError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        if is_out_of_memory(error) or is_our_bug(error):
            raise
        ids = ", ".join(str(number) for number in batch.texts.examples)
        raise ToolkitError(
            f"the model failed on text {ids} ({max(batch.texts.lengths):,} tokens): "
            f"{' '.join(str(error).split())[:300]}"
        ) from error


def _store(step: Step, tables: Mapping[Part, LayerTable], taken: Taken | None) -> tuple[Batch, int]:
    """Check the rows of a batch and add them to its chunk. Returns their number, of all heads."""
    found: dict[Part, pa.Table] = {}
    if taken is not None:
        known = taken.known_attention
        for part, rows in taken.parts():
            table, is_known = tables[part], part.layer in known
            checked = stored_rows(part, rows, half=table.half, known_attention=is_known)
            found[part] = table_of(checked, part.layer, table.schema)
    step.claim.add(step.batch, found)
    return step.batch, sum(rows.num_rows for rows in found.values())


def _report(work: Work, writer: BackgroundWriter[tuple[Batch, int]], watcher: Watcher) -> None:
    """Tell the watcher which batches were stored, and which chunks others have saved.

    Raises the error of a batch that could not be stored.
    """
    for batch, rows in writer.finished():
        watcher.advance(len(batch.examples), tokens=batch.num_tokens, rows=rows)
    for segment in work.saved_by_others():
        tokens = sum(example.num_tokens for example in segment.examples)
        watcher.advance(len(segment.examples), tokens=tokens)


def _finish(work: Work, watcher: Watcher) -> None:
    """Write the dump from the chunks on disk, and say what it lacks."""
    setup, capture = work.setup, work.capture
    lengths = [one.num_tokens for part in read_segments(capture.folder) for one in part.examples]
    texts = partial(token_texts, setup.tokenizer) if setup.config.capture.tokens else None
    try:
        finish(
            capture,
            work.num_chunks,
            [*work.tables.values()],
            manifest_of(setup, {*lengths}),
            on_head=partial(watcher.show, "writing heads"),
            token_texts=texts,
        )
    finally:
        watcher.stop()
    if setup.texts.total is None:  # the others were told before the first text
        for note in setup.texts.notes:
            watcher.note(note)
    if setup.config.capture.capture_queries:
        warning = bucket_counts(setup.row_plan.sampler, lengths).warning()
        if warning is not None:
            watcher.note(warning)


def _check_number(texts: int | None, folder: Path) -> None:
    """Refuse when texts were added or removed after the dump was complete."""
    manifest = read_manifest(folder / MANIFEST_NAME)
    held = manifest.num_examples if manifest else None
    if texts is not None and held is not None and texts != held:
        raise ConfigError(
            f"{folder}: holds a complete dump of {held:,} texts, but the dataset now has "
            f"{texts:,}; use another output.data_root, or overwrite to start again"
        )
