"""The content of run.json: settings, input, heads, means, warnings and missing values."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.config import NOT_RECORDED, RunnerConfig
from attention_plasticity.measure.result import Failure
from attention_plasticity.metrics import LEFT_OUT
from attention_plasticity.run.collected import Collected
from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.warnings import (
    ORIGINAL_LEFT_OUT,
    RunWarning,
    warnings_of_dump,
    warnings_of_tokens,
)
from attention_plasticity.tables.head_means import eligible_heads
from attention_plasticity.tables.missing import missing_records
from attention_plasticity.tables.run_info import NUMERIC_LIBRARIES
from qk_dump.positions import geometry_of


def recorded_config(config: RunnerConfig) -> dict[str, Any]:
    """The settings as run.json has them."""
    of_the_hub = {"dataset_name", "dataset_revision"} if config.dataset_local_root else set()
    return config.model_dump(exclude={*NOT_RECORDED, *of_the_hub})


def run_json(run: PlannedRun, found: Collected, seconds: float) -> dict[str, Any]:
    """The content of run.json, without the tables and their hashes."""
    dump, manifest, bins = run.dump, run.dump.manifest, run.texts.bins
    content = None if manifest is None else manifest.model_dump(exclude_none=True)
    all_heads = not found.not_analysed and not run.is_part
    failed = [(one.layer, one.q_head) for one in found.failures]
    recorded = [triple[:2] for triple in (*found.heads, *found.not_analysed)]
    captured = {*recorded, *failed}
    missing = (run.plan if run.is_part else run.whole).not_captured
    not_captured = [list(head) for head in missing if head not in captured]
    return {
        "attention_plasticity": __version__,
        "config": recorded_config(run.config),
        "seed": run.config.seed,
        "bin_size": None if bins is None else bins.size,
        "longest_text": None if bins is None else bins.context,
        "input": {
            "path": str(dump.path),
            "hub": dump.origin,
            "texts": run.texts.as_input,
            "dump": content,
            **({} if dump.rotary is None else {"rotary": dump.rotary.as_record()}),
            "fingerprint": run.files.joint(head for head in found.heads if head in run.captured),
        },
        "head_layout": asdict(run.plan.layout),
        "heads": {
            "analysed": len(found.heads),
            "failed": len(failed),
            "not_analysed": len(found.not_analysed),
            "not_captured": len(not_captured),
        },
        "not_analysed": [list(head[:2]) for head in found.not_analysed],
        "not_captured": not_captured,
        "failures": [_failure(one) for one in found.failures],
        "warnings": [asdict(warning) for warning in _warnings(run, found)],
        "missing": missing_records(found.missing),
        **found.means(eligible_heads(content or {}, all_heads=all_heads)),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in NUMERIC_LIBRARIES},
        },
    }


def _failure(failure: Failure) -> dict[str, Any]:
    """A failure, with a traceback where there is one."""
    return {name: value for name, value in asdict(failure).items() if name != "traceback" or value}


def _warnings(run: PlannedRun, found: Collected) -> Iterator[RunWarning]:
    manifest, bins = run.dump.manifest, run.texts.bins
    geometry = None
    if manifest is not None:
        geometry = geometry_of(manifest.bucket_type, manifest.min_bucket_size)
    if not run.config.original_columns:
        heads = len(found.heads)
        yield RunWarning("original_left_out", ORIGINAL_LEFT_OUT, heads, [LEFT_OUT])
    yield from found.sizes.warnings(geometry, None if bins is None else bins.size)
    yield from warnings_of_dump(manifest, run.texts.as_input, found.values["head_metrics"])
    yield from warnings_of_tokens(found.unknown_tokens)
