"""A whole run: plan, resume, compute, record, write.

A head is recorded as soon as it is finished. The tables have the same bytes for any number of
workers and interruptions. Tables of another run are never mixed with those of this run.
"""

from __future__ import annotations

import math
import platform
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.config import RunnerConfig
from attention_plasticity.dump_texts import equal_texts_note, text_list
from attention_plasticity.results import Failure
from attention_plasticity.run.engines import EarlyWorkers, run_local
from attention_plasticity.run.fingerprints import InputFiles
from attention_plasticity.run.head_means import HeadMeans, MeanEstimate
from attention_plasticity.run.outputs import (
    OutputPaths,
    check_writable,
    output_paths,
    refuse_foreign_tables,
    refuse_reserved,
    set_aside,
    tables_locked,
    write_outputs,
)
from attention_plasticity.run.plan import Plan, make_plan, split_groups
from attention_plasticity.run.records import (
    NUMERIC_LIBRARIES,
    FinishedHeads,
    Metrics,
    Records,
    run_settings,
)
from attention_plasticity.run.warnings import (
    RunWarning,
    SampleSizes,
    attended_warnings,
    bias_warnings,
    selective_warnings,
)
from attention_plasticity.run.worker_log import WorkerLog
from qk_dump.column_rules import rules_of
from qk_dump.hub.pull import HeadChoice
from qk_dump.layout import Dump, HeadId
from qk_dump.source import DumpSource, open_dump
from qk_toolkit.errors import ConfigError
from qk_toolkit.watcher import Watcher


@dataclass(frozen=True)
class Outcome:
    """The result of a run: a row of metrics per finished head, the failures and the files."""

    paths: OutputPaths
    plan: Plan
    metrics: list[Metrics] = field(repr=False)
    failures: list[Failure]
    warnings: list[RunWarning]
    means: HeadMeans


def prepare(
    config: RunnerConfig, watcher: Watcher | None = None, dump: Dump | None = None
) -> tuple[Dump, Plan, OutputPaths]:
    """Find or fetch the dump, pair its heads and choose the output paths. Nothing is written."""
    dump = dump or _find(config, watcher or Watcher())
    paths = output_paths(config, dump.name)
    refuse_reserved(paths)
    refuse_foreign_tables(paths)
    return dump, make_plan(dump, config), paths


def _find(config: RunnerConfig, watcher: Watcher) -> Dump:
    source = DumpSource(
        config.dataset_local_root,
        config.model_dir,
        config.dataset_name,
        config.dataset_revision,
        config.dataset_cache_dir,
        config.download_max_workers,
    )
    choice = _heads_to_fetch(config)
    on_bytes = partial(watcher.show, "fetching", in_bytes=True)
    try:
        return open_dump(source, choice=choice, note=watcher.note, on_bytes=on_bytes)
    except BaseException:
        watcher.stop()  # removes the bar
        raise


def _heads_to_fetch(config: RunnerConfig) -> HeadChoice:
    layers = config.layers
    if layers is None and config.num_layers is not None:
        layers = list(range(config.num_layers))
    group = None
    if config.num_q_heads and config.num_k_heads:
        group = config.num_q_heads // config.num_k_heads
    return HeadChoice(layers, config.heads, group)


def run_analysis(
    config: RunnerConfig,
    watcher: Watcher | None = None,
    dump: Dump | None = None,
    workers: EarlyWorkers | None = None,
) -> Outcome:
    """Analyse every head of the dump (the config's, unless one is given) and write the tables.

    `workers` were started before, to import their modules meanwhile. Raises a `ToolkitError` when
    nothing can be done; heads that fail are listed in the result.
    """
    watcher = watcher or Watcher()
    began = time.monotonic()
    dump, plan, paths = prepare(config, watcher, dump)
    check_writable(paths)
    for note in plan.notes:
        watcher.note(note)
    if config.equal_texts:
        watcher.note(equal_texts_note(dump))
    records = Records(paths.folder, run_settings(config, plan.layout))
    with tables_locked(paths):
        records.lock()
        try:
            return _run(dump, plan, paths, config, records, watcher, workers, began)
        finally:
            records.release()


def _run(
    dump: Dump,
    plan: Plan,
    paths: OutputPaths,
    config: RunnerConfig,
    records: Records,
    watcher: Watcher,
    workers: EarlyWorkers | None,
    began: float,
) -> Outcome:
    """The run itself. This process has locked the output folder."""
    inputs = InputFiles(dump)
    for head in plan.triples:
        inputs.record_state(*head)
    done = _finished_heads(records, inputs, plan, paths, config, watcher)
    log = WorkerLog(paths.log)
    failures = _compute(dump, inputs, plan, config, records, done, watcher, workers, log)
    if log.written:
        watcher.note(f"messages of the workers are in {log.path}")
    failures += _drop_changed(records, inputs, plan, done)
    failures.sort(key=lambda failure: (failure.layer, failure.q_head))
    heads = [head for head in plan.heads if head in done]
    if all(math.isnan(done[head]["attn_entropy"]) for head in heads):
        paths = replace(paths, attention=None)
        set_aside(paths, include_own=False)  # a table of attention of an earlier run
    facts = _provenance(dump, inputs, plan, config, paths, heads, failures, began)
    sizes = SampleSizes(single_example=config.single_example, equal_texts=config.equal_texts)
    geometry = rules_of(dump, plan.groups[0].layer).geometry

    means = HeadMeans()
    metrics = [done[head] for head in heads]

    def warnings() -> list[RunWarning]:
        return [
            *sizes.warnings(geometry),
            *bias_warnings(metrics),
            *attended_warnings(metrics),
            *selective_warnings(dump.manifest, heads),
        ]

    write_outputs(
        paths,
        means.collected(sizes.counted(records.load(*head) for head in heads)),
        facts,
        lambda: {
            "warnings": [asdict(warning) for warning in warnings()],
            "means": _means_record(means.estimates),
            "means_by_layer_type": {
                name: _means_record(found) for name, found in means.by_layer_type.items()
            },
        },
    )
    return Outcome(paths, plan, metrics, failures, warnings(), means)


def _means_record(means: dict[str, MeanEstimate]) -> dict[str, Any]:
    """Means over heads for run.json, without NaN, which JSON does not have."""
    return {
        name: {
            "value": mean.value,
            "standard_error": None if math.isnan(mean.standard_error) else mean.standard_error,
            "heads": mean.heads,
            "corrected": mean.corrected,
        }
        for name, mean in means.items()
        if mean.heads
    }


def _finished_heads(
    records: Records,
    inputs: InputFiles,
    plan: Plan,
    paths: OutputPaths,
    config: RunnerConfig,
    watcher: Watcher,
) -> dict[tuple[int, int], Metrics]:
    """Heads that an earlier run finished. Tables of other runs are moved to a subfolder."""
    earlier = FinishedHeads({}) if config.overwrite else records.finished_heads(inputs)
    if earlier.conflict:
        raise ConfigError(earlier.conflict)
    planned = set(plan.heads)
    done = {head: row for head, row in earlier.metrics.items() if head in planned}
    records.begin(discard=not done)
    keep = set_aside(paths, include_own=not done)
    for note in earlier.notes:
        watcher.note(note)
    if keep:
        watcher.note(f"files of an earlier run were moved to {keep}")
    if done:
        watcher.note(f"{len(done)} of {len(planned)} heads were finished earlier and are kept")
    return done


def _compute(
    dump: Dump,
    inputs: InputFiles,
    plan: Plan,
    config: RunnerConfig,
    records: Records,
    done: dict[tuple[int, int], Metrics],
    watcher: Watcher,
    workers: EarlyWorkers | None,
    log: WorkerLog,
) -> list[Failure]:
    """Compute the missing heads and add each to `done` and to the records."""
    failures: list[Failure] = []
    watcher.start("heads", len(plan.heads), len(done))
    groups = split_groups(plan.without(done), config.workers)
    engine = run_local(dump.path, groups, config, config.workers, log, workers)
    with closing(engine) as outcomes:
        try:
            for outcome in outcomes:
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                else:
                    records.add(outcome, inputs)
                    done[outcome.layer, outcome.q_head] = outcome.metrics
                watcher.advance(failed=int(isinstance(outcome, Failure)))
        finally:
            watcher.stop()
    return failures


def _drop_changed(
    records: Records,
    inputs: InputFiles,
    plan: Plan,
    done: dict[tuple[int, int], Metrics],
) -> list[Failure]:
    """Failures of the heads whose input files changed during the run."""
    failures = []
    for layer, q_head, k_head in plan.triples:
        if (layer, q_head) in done and not inputs.unchanged(layer, q_head, k_head):
            records.drop(layer, q_head)
            del done[layer, q_head]
            reason = "its files changed during the run; run the same command again"
            failures.append(Failure(layer, q_head, k_head, reason))
    return failures


def _provenance(
    dump: Dump,
    inputs: InputFiles,
    plan: Plan,
    config: RunnerConfig,
    paths: OutputPaths,
    heads: list[tuple[int, int]],
    failures: list[Failure],
    began: float,
) -> dict[str, Any]:
    key_head_of = plan.layout.key_head_of
    used = {HeadId(layer, q_head, "q") for layer, q_head in heads}
    used |= {HeadId(layer, key_head_of(q_head), "k") for layer, q_head in heads}
    manifest = dump.manifest.model_dump(exclude_none=True) if dump.manifest else None
    return {
        "attention_plasticity": __version__,
        "config": config.model_dump(exclude={"dry_run", "overwrite"}),
        "seed": config.seed,
        "input": {
            "path": str(dump.path),
            "hub": dump.origin,
            "fingerprint": inputs.fingerprint(sorted(used)),
            "texts": text_list(dump, equal_texts=config.equal_texts),
            "dump": manifest,
        },
        "head_layout": asdict(plan.layout),
        "heads": {
            "analysed": len(heads),
            "not_captured": len(plan.not_captured),
            "failed": len(failures),
        },
        "not_captured": [list(head) for head in plan.not_captured],
        "failures": [asdict(failure) for failure in failures],
        "tables": paths.names() if heads else {},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 3),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in NUMERIC_LIBRARIES},
        },
    }
