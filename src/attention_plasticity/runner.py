"""A whole run: plan, resume, compute, record, write.

What is promised here: a head is recorded the moment it is finished, the tables are the same bytes
however many workers or interruptions there were, and tables of another run never pass for this
one's.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.config import RunnerConfig
from attention_plasticity.engines import run_local
from attention_plasticity.outputs import (
    OutputPaths,
    check_writable,
    output_paths,
    set_aside,
    write_outputs,
)
from attention_plasticity.plan import Plan, make_plan, shared_out
from attention_plasticity.records import Records
from attention_plasticity.results import Failure, HeadResult
from qk_dump.hub import locate_dump
from qk_dump.layout import Dump, HeadId


class Watcher:
    """Told how a run goes. This one shows nothing; the command line's shows a bar."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def start(self, total: int, done: int) -> None:
        """Heads of the run, and how many an earlier run had finished."""

    def advance(self, failed: bool) -> None:
        """One more head is finished."""

    def stop(self) -> None:
        """No more heads will come."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to: finished heads, failed ones, and where the files are."""

    paths: OutputPaths
    plan: Plan
    results: list[HeadResult] = field(repr=False)
    failures: list[Failure]

    @property
    def exit_code(self) -> int:
        """0 when every head went through, else 1."""
        return 1 if self.failures else 0


def prepare(config: RunnerConfig) -> tuple[Dump, Plan, OutputPaths]:
    """Find the dump, pair its heads and place the outputs; nothing is written."""
    dump = locate_dump(
        config.dataset_local_root,
        config.model_dir,
        dataset_name=config.dataset_name,
        dataset_revision=config.dataset_revision,
    )
    return dump, make_plan(dump, config), output_paths(config, dump.path.resolve().name)


def run_analysis(config: RunnerConfig, watcher: Watcher | None = None) -> Outcome:
    """Analyse every head of the dump and write the tables.

    Raises a `ToolkitError` when nothing can be done; heads that fail are listed in the result.
    """
    watcher = watcher or Watcher()
    began = time.monotonic()
    dump, plan, paths = prepare(config)
    check_writable(paths)
    if plan.layout.guessed:
        watcher.note(f"layout: {plan.layout}")
    records = Records(paths.folder)
    records.lock()
    try:
        done = records.resume(dump, config, plan.layout, overwrite=config.overwrite)
        if not done:
            # whatever tables lie here belong to another run and must not pass for this one's
            keep = set_aside(paths)
            if keep:
                watcher.note(f"files of an earlier run were moved to {keep}")
        failures = _compute(dump, plan, config, records, done, watcher)
        results = [done[head] for head in plan.heads if head in done]
        facts = _provenance(dump, plan, config, paths, records, results, failures, began)
        write_outputs(paths, results, facts)
    finally:
        records.release()
    return Outcome(paths, plan, results, failures)


def _compute(
    dump: Dump,
    plan: Plan,
    config: RunnerConfig,
    records: Records,
    done: dict[tuple[int, int], HeadResult],
    watcher: Watcher,
) -> list[Failure]:
    """Work off what is not done, adding to `done` and to the records as heads finish."""
    failures: list[Failure] = []
    if done:
        watcher.note(f"{len(done)} of {len(plan.heads)} heads were finished earlier and are kept")
    watcher.start(len(plan.heads), len(done))
    groups = shared_out(plan.without(done), config.workers)
    outcomes = run_local(dump.path, groups, config, config.workers)
    try:
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                records.add(outcome, dump)
                done[outcome.layer, outcome.q_head] = outcome
            watcher.advance(isinstance(outcome, Failure))
    finally:
        outcomes.close()  # type: ignore[attr-defined]
        watcher.stop()
    return sorted(failures, key=lambda failure: (failure.layer, failure.q_head))


def _provenance(
    dump: Dump,
    plan: Plan,
    config: RunnerConfig,
    paths: OutputPaths,
    records: Records,
    results: list[HeadResult],
    failures: list[Failure],
    began: float,
) -> dict[str, Any]:
    used = sorted(
        {HeadId(result.layer, result.q_head, "q") for result in results}
        | {HeadId(result.layer, result.k_head, "k") for result in results}
    )
    manifest = dump.manifest.model_dump(exclude_none=True) if dump.manifest else None
    return {
        "attention_plasticity": __version__,
        "config": config.model_dump(exclude={"dry_run", "overwrite"}),
        "seed": config.seed,
        "input": {
            "path": str(dump.path),
            "fingerprint": records.fingerprint(dump, used),
            "dump": manifest,
        },
        "head_layout": {
            "num_layers": plan.layout.num_layers,
            "num_q_heads": plan.layout.num_q_heads,
            "num_k_heads": plan.layout.num_k_heads,
            "source": plan.layout.source,
        },
        "heads": {
            "analysed": len(results),
            "not_captured": len(plan.not_captured),
            "failed": len(failures),
        },
        "not_captured": [list(head) for head in plan.not_captured],
        "failures": [
            {"layer": f.layer, "q_head": f.q_head, "k_head": f.k_head, "reason": f.reason}
            for f in failures
        ],
        "tables": paths.names(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 3),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "pyarrow")},
        },
    }
