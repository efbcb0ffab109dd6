"""A whole measurement: plan, continue, measure, record, write."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attention_plasticity import __version__
from attention_plasticity.fidelity.folder import locked, refuse_other_dump, result_folder
from attention_plasticity.fidelity.key_head import FEW_GROUPS
from attention_plasticity.fidelity.outputs import ScoreMeans, write_results
from attention_plasticity.fidelity.records import FidelityRecords
from attention_plasticity.fidelity.rows import NO_LSE
from attention_plasticity.fidelity.settings import RESULT_FIELDS, FidelityConfig
from attention_plasticity.fidelity.worker import Job, measure_all
from attention_plasticity.read.run_texts import run_texts
from attention_plasticity.read.texts import DumpTexts
from attention_plasticity.run.fingerprints import InputFiles, head_pair, joint_fingerprint
from attention_plasticity.run.plan import Group, Plan, make_plan
from qk_dump.layout import Dump, HeadId
from qk_dump.parquet import has_attention_columns
from qk_dump.rotary_file import with_rotary
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError, ToolkitError
from qk_toolkit.files import user_path
from qk_toolkit.urls import is_remote
from qk_toolkit.watcher import Watcher

_CHANGED = "its files changed during the measurement; run the same command again"


@dataclass(frozen=True)
class FidelityOutcome:
    """Means over key heads, failures, and where the files are."""

    folder: Path
    means: list[ScoreMeans]
    key_heads: int  # measured
    failures: list[dict[str, Any]]  # layer, key head and reason


def measure_fidelity(config: FidelityConfig, watcher: Watcher) -> FidelityOutcome:
    """Measure all key heads of a dump and write the results."""
    if config.dump is None:
        raise ConfigError("dump: give the folder or URL of a dump after the word fidelity")
    dump = with_rotary(open_dump(config.dump, note=watcher.note), config.rotary)
    reading = config.for_reading()
    plan = make_plan(dump, reading)
    for note in plan.notes:
        watcher.note(note)
    folder = result_folder(config.output_dir, dump)
    _require_attention(dump, plan)
    texts = run_texts(dump, {group.layer for group in plan.groups}, reading)
    if texts.bins is None:
        raise ConfigError(f"{dump.path}: no query head can be read; capture the dump again")
    if texts.ids is not None and len(np.unique(texts.groups.of(texts.ids))) < 2:
        raise ConfigError(f"{dump.path}: {FEW_GROUPS}")
    first_query = config.first_query
    first_query = texts.bins.context // 4 if first_query is None else first_query
    job = Job(
        str(dump.path.absolute() if isinstance(dump.path, Path) else dump.path),
        _absolute(config.rotary),
        config.model_dump(include={*RESULT_FIELDS, "layers", "heads"}),
        texts.as_message(),
        config.near,
        first_query,
    )
    inputs = InputFiles(dump)
    with locked(folder):
        refuse_other_dump(folder, dump)
        settings = _settings(config, dump, texts, inputs, first_query)
        records = FidelityRecords(folder, settings, inputs)
        records.begin(overwrite=config.overwrite)
        measured, failures = _measure(job, plan, records, config.workers, watcher)
        for group in _changed(inputs, list(measured)):
            records.drop(group)
            del measured[group]
            failures.append(_failure(group, _CHANGED))
        failures.sort(key=lambda one: (one["layer"], one["k_head"]))
        facts = {
            "config": config.model_dump(exclude={"overwrite", "max_workers"}),
            "first_query": first_query,
            "bin_size": texts.bins.size,
            "longest_text": texts.bins.context,
            "input": _input(dump, texts, inputs, list(measured)),
        }
        means = write_results(folder, measured, failures, facts)
    return FidelityOutcome(folder, means, len(measured), failures)


def _measure(
    job: Job, plan: Plan, records: FidelityRecords, workers: int, watcher: Watcher
) -> tuple[dict[Group, dict[str, Any]], list[dict[str, Any]]]:
    """The numbers of all key heads, also of those that were measured earlier, and the failures."""
    measured: dict[Group, dict[str, Any]] = {}
    failures: list[dict[str, Any]] = []
    for group in plan.groups:
        known = records.load(group)
        if known is not None:
            measured[group] = known
    left = [group for group in plan.groups if group not in measured]
    if measured:
        total = len(plan.groups)
        watcher.note(f"{len(measured)} of {total} key heads were measured earlier and are kept")
    watcher.start("key heads", len(plan.groups), len(measured))
    try:
        with closing(measure_all(job, left, workers)) as found:
            for one in found:
                if one.content is None:
                    failures.append(_failure(one.group, one.reason))
                else:
                    records.add(one.group, one.content)
                    measured[one.group] = one.content
                watcher.advance(failed=int(one.content is None))
    finally:
        watcher.stop()
    return measured, failures


def _failure(group: Group, reason: str) -> dict[str, Any]:
    return {"layer": group.layer, "k_head": group.k_head, "reason": reason}


def _require_attention(dump: Dump, plan: Plan) -> None:
    """Raise a `ConfigError` if no query head has attention columns."""
    for layer, q_head, _ in plan.triples:
        try:
            if has_attention_columns(dump.require_files(HeadId(layer, q_head, "q"))):
                return
        except ToolkitError:
            return  # the head gives the reason
    raise ConfigError(f"{dump.path}: {NO_LSE}")


def _changed(inputs: InputFiles, groups: list[Group]) -> list[Group]:
    """Key heads whose files changed since they were first looked at."""
    changed = inputs.changed()
    return [
        group
        for group in groups
        if any(
            not changed.isdisjoint(head_pair(group.layer, q_head, group.k_head))
            for q_head in group.q_heads
        )
    ]


def _settings(
    config: FidelityConfig, dump: Dump, texts: DumpTexts, inputs: InputFiles, first_query: int
) -> dict[str, Any]:
    """What decides the numbers of a key head, apart from its own files."""
    rotary = None if dump.rotary is None else dump.rotary.as_record()
    return {
        "version": __version__,
        **{name: getattr(config, name) for name in RESULT_FIELDS},
        "first_query": first_query,
        "rotary": hashlib.sha256(json.dumps(rotary).encode()).hexdigest(),
        "dump": inputs.identity,
        "texts": texts.digest,
    }


def _input(dump: Dump, texts: DumpTexts, inputs: InputFiles, groups: list[Group]) -> dict[str, Any]:
    heads = [(g.layer, q_head, g.k_head) for g in groups for q_head in g.q_heads]
    return {
        "path": str(dump.path),
        "hub": dump.origin,
        "dump": dump.manifest.model_dump(exclude_none=True) if dump.manifest else None,
        "texts": texts.as_input,
        "identity": inputs.identity,
        "fingerprint": joint_fingerprint(inputs.files_of_all(heads)),
    }


def _absolute(name: str | None) -> str | None:
    """A file name that does not depend on the current folder."""
    return name if name is None or is_remote(name) else str(user_path(name).absolute())
