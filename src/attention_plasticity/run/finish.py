"""The end of a run: tables and run.json from the records of its heads."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.measure.key_heads import KeyHeadRow
from attention_plasticity.measure.result import Failure, HeadResult
from attention_plasticity.metrics import ALIGNED
from attention_plasticity.run.fingerprints import Head, RunFacts
from attention_plasticity.run.head_means import HeadMeans, MeanEstimate, eligible_heads
from attention_plasticity.run.key_heads import KeyHeadRows
from attention_plasticity.run.labels import with_label
from attention_plasticity.run.missing import MissingSums, MissingValues, missing_records
from attention_plasticity.run.outputs import OutputPaths, output_drafts, set_aside
from attention_plasticity.run.records import Metrics
from attention_plasticity.run.run_info import NUMERIC_LIBRARIES
from attention_plasticity.run.warnings import (
    RunWarning,
    SampleSizes,
    selective_warnings,
    text_warnings,
    weight_warnings,
)
from qk_dump.buckets import geometry_of


@dataclass(frozen=True)
class Outcome:
    """The result of a run: a row of metrics per finished head, the failures and the files."""

    paths: OutputPaths
    facts: RunFacts
    metrics: list[Metrics] = field(repr=False)
    failures: list[Failure]
    warnings: list[RunWarning]
    means: HeadMeans
    missing: list[MissingValues]
    roles: Mapping[str, int] = field(default_factory=dict)  # heads by role
    key_head_means: dict[str, MeanEstimate] = field(default_factory=dict)


def finish_run(
    facts: RunFacts,
    paths: OutputPaths,
    done: dict[Head, Metrics],
    load: Callable[[int, int], HeadResult],
    failures: Sequence[Failure],
    fingerprint: str,
    seconds: float,
) -> Outcome:
    """Write the tables and run.json of the finished heads. `load` reads the record of a head."""
    failures = sorted(failures, key=lambda failure: (failure.layer, failure.q_head))
    heads = sorted(done)
    metrics = [done[head] for head in heads]
    if all(math.isnan(row[ALIGNED]) for row in metrics):
        paths = paths.without(["bins"])
    settings, missing = facts.settings, MissingSums()
    means = HeadMeans(eligible_heads(facts.input["dump"] or {}, facts.config))
    sizes = SampleSizes(single_example=settings.single_example, equal_texts=settings.equal_texts)
    manifest = facts.manifest
    geometry = (
        None if manifest is None else geometry_of(manifest.bucket_type, manifest.min_bucket_size)
    )

    roles: Counter[str] = Counter()
    key_heads = KeyHeadRows()
    with output_drafts(paths) as drafts:

        def add_key_heads(rows: Iterable[KeyHeadRow]) -> None:
            for row in rows:
                drafts.add_key_head(row.values)
                missing.add_key_head(row)

        for head in heads:
            result = with_label(load(*head), settings.role_thresholds)
            drafts.add(result)
            sizes.add(result)
            means.add(result)
            missing.add(result)
            roles.update(result.tables.get("roles", {}).get("role", ()))
            add_key_heads(key_heads.add(result))
        add_key_heads(key_heads.end())
        paths = drafts.paths
        set_aside(paths, include_own=False)  # tables of an earlier run that this run does not have
        warnings = [
            *text_warnings(facts.input["texts"], len(heads)),
            *sizes.warnings(geometry, facts.bins[0] if facts.bins else None),
            *selective_warnings(manifest, heads),
            *weight_warnings(manifest, metrics),
        ]
        by_layer_type = means.by_layer_type.items()
        drafts.end(
            {
                **_provenance(facts, paths, heads, failures, fingerprint, seconds),
                "warnings": [asdict(warning) for warning in warnings],
                "missing": missing_records(missing.found),
                "means": _means_record(means.estimates),
                "means_by_layer_type": {
                    name: _means_record(found) for name, found in by_layer_type
                },
                "key_head_means": _means_record(key_heads.means),
                "drift_means": _means_record(means.drift),
            }
        )
    return Outcome(
        paths=paths,
        facts=facts,
        metrics=metrics,
        failures=failures,
        warnings=warnings,
        means=means,
        missing=missing.found,
        roles=roles,
        key_head_means=key_heads.means,
    )


def _provenance(
    facts: RunFacts,
    paths: OutputPaths,
    heads: Sequence[Head],
    failures: Sequence[Failure],
    fingerprint: str,
    seconds: float,
) -> dict[str, Any]:
    return {
        "attention_plasticity": __version__,
        "config": facts.config,
        "seed": facts.config["seed"],
        "bin_size": facts.bins and facts.bins[0],
        "longest_text": facts.bins and facts.bins[1],
        "input": {**facts.input, "fingerprint": fingerprint},
        "head_layout": facts.layout,
        "heads": {
            "analysed": len(heads),
            "not_captured": len(facts.not_captured),
            "failed": len(failures),
        },
        "not_captured": facts.not_captured,
        "failures": [asdict(failure) for failure in failures],
        "tables": paths.names() if heads else {},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in NUMERIC_LIBRARIES},
        },
    }


def _means_record(means: dict[str, MeanEstimate]) -> dict[str, Any]:
    """Means over heads for run.json, without NaN, which JSON does not have."""
    return {
        name: {
            "value": mean.value,
            "standard_error": _known(mean.standard_error),
            "standard_error_texts": _known(mean.text_error),
            "heads": mean.heads,
            "eligible_heads": mean.eligible,
            "groups": mean.groups or None,
        }
        for name, mean in means.items()
        if mean.heads
    }


def _known(error: float) -> float | None:
    return None if math.isnan(error) else error
