"""The content of run.json: settings, input, heads, means, warnings and missing values."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.config import PLACEMENT_FIELDS, TABLE_PATHS, RunnerConfig
from attention_plasticity.estimate.quantity import unknown
from attention_plasticity.measure.result import HeadResult, KeyHeadRow
from attention_plasticity.metrics import (
    GROUP_COLUMNS,
    HEAD_METRICS,
    KEY_HEADS,
)
from attention_plasticity.run.preparation import PlannedRun
from attention_plasticity.run.recorded import Recorded
from attention_plasticity.run.warnings import (
    HeadFiles,
    SampleSizes,
    warnings_of_dump,
    warnings_of_files,
)
from attention_plasticity.tables.head_means import (
    EligibleHeads,
    MeanEstimate,
    eligible_heads,
    mean_estimate,
)
from attention_plasticity.tables.missing import missing_records
from attention_plasticity.tables.run_info import NUMERIC_LIBRARIES
from qk_dump.positions import geometry_of

_UNKNOWN = (math.nan,) * len(GROUP_COLUMNS)  # influences
_NOT_RECORDED = (
    *("dry_run", "layers", "heads", "output_dir", "max_workers"),
    *("dataset_cache_dir", "download_max_workers"),
    *TABLE_PATHS,
)
"""Settings that do not describe the tables: what a command computes, and where."""


def recorded_config(config: RunnerConfig) -> dict[str, Any]:
    """The settings as run.json has them."""
    return config.model_dump(exclude={*_NOT_RECORDED, *PLACEMENT_FIELDS})


class Collected:
    """Collects from the heads of a run, in order, what run.json says about all of them."""

    def __init__(self, run: PlannedRun) -> None:
        config = run.config
        self.metrics: list[dict[str, Any]] = []
        self.missing: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
        self.sizes = SampleSizes(single_example=config.single_example)
        self.files: list[HeadFiles] = []
        self._influences: list[dict[str, tuple[Sequence[float], int]]] = []
        self._key_heads: list[KeyHeadRow] = []

    def add(self, result: HeadResult) -> None:
        """Add a head."""
        self.metrics.append(result.metrics)
        self.sizes.add(result)
        for table, reasons in result.missing.items():
            self._add_missing(table, reasons, (result.layer, result.q_head))
        self.files.append(HeadFiles(result.layer, result.q_head, result.k_head, result.files))
        self._influences.append(_of_whole_head(result.tables.get("influences", {})))

    def add_key_head(self, row: KeyHeadRow) -> None:
        """Add a key head."""
        self._key_heads.append(row)
        self._add_missing("key_heads", row.missing, (row.layer, row.k_head))

    def _add_missing(self, table: str, reasons: Mapping[str, str], head: tuple[int, int]) -> None:
        for column, reason in reasons.items():
            self.missing.setdefault((table, column, reason), []).append(head)

    def means(self, eligible: EligibleHeads | None) -> dict[str, Any]:
        """The means over heads, as run.json has them."""
        total = None if eligible is None else eligible.total
        rows = list(range(len(self.metrics)))
        by_type: dict[str, list[int]] = {}
        for row, metrics in enumerate(self.metrics):
            by_type.setdefault(metrics["layer_type"], []).append(row)
        return {
            "means": self._means(self.metrics, HEAD_METRICS.averaged, rows, total),
            "means_by_layer_type": {
                name: self._means(
                    self.metrics,
                    HEAD_METRICS.averaged,
                    members,
                    None if eligible is None else eligible.of_types([name]),
                )
                for name, members in by_type.items()
            },
            "key_head_means": _record({name: self._key_mean(name) for name in KEY_HEADS.averaged}),
        }

    def _means(
        self,
        table: Sequence[Mapping[str, Any]],
        names: Sequence[str],
        rows: list[int],
        eligible: int | None,
    ) -> dict[str, Any]:
        found = {}
        for name in names:
            own = [self._influences[row].get(name, (_UNKNOWN, 0)) for row in rows]
            values = [table[row].get(name, math.nan) for row in rows]
            influences = [one[0] for one in own]
            found[name] = mean_estimate(values, influences, [one[1] for one in own], eligible)
        return _record(found)

    def _key_mean(self, name: str) -> MeanEstimate:
        own = [row.quantities.get(name, unknown()) for row in self._key_heads]
        return mean_estimate(
            [one.value for one in own],
            [one.influences.tolist() for one in own],
            [one.groups for one in own],
        )


def _of_whole_head(columns: Mapping[str, Any]) -> dict[str, tuple[Sequence[float], int]]:
    """Influences and number of groups of the quantities of a whole head, by name."""
    return {
        quantity: ([columns[name][row] for name in GROUP_COLUMNS], columns["n_groups"][row])
        for row, quantity in enumerate(columns.get("quantity", ()))
        if math.isnan(columns["bin"][row])
    }


def run_json(
    run: PlannedRun, found: Recorded, collected: Collected, seconds: float
) -> dict[str, Any]:
    """The content of run.json, without the tables and their hashes."""
    dump, manifest, bins = run.dump, run.dump.manifest, run.texts.bins
    content = None if manifest is None else manifest.model_dump(exclude_none=True)
    all_heads = not found.not_analysed and not run.is_part
    heads = [triple[:2] for triple in found.heads]
    captured = {triple[:2] for triple in (*found.heads, *found.failed, *found.not_analysed)}
    missing = (run.plan if run.is_part else run.whole).not_captured
    not_captured = [list(head) for head in missing if head not in captured]
    geometry = None
    if manifest is not None:
        geometry = geometry_of(manifest.bucket_type, manifest.min_bucket_size)
    bin_size = None if bins is None else bins.size
    texts = run.texts.as_input
    warnings = [
        *collected.sizes.warnings(geometry, bin_size),
        *warnings_of_dump(manifest, texts, collected.metrics),
        *warnings_of_files(collected.files),
    ]
    return {
        "attention_plasticity": __version__,
        "config": recorded_config(run.config),
        "seed": run.config.seed,
        "bin_size": bin_size,
        "longest_text": None if bins is None else bins.context,
        "input": {
            "path": str(dump.path),
            "hub": dump.origin,
            "texts": texts,
            "dump": content,
            **({} if dump.rotary is None else {"rotary": dump.rotary.as_record()}),
            "fingerprint": run.files.joint(head for head in found.heads if head in run.units),
        },
        "head_layout": asdict(run.plan.layout),
        "heads": {
            "analysed": len(heads),
            "failed": len(found.failed),
            "not_analysed": len(found.not_analysed),
            "not_captured": len(not_captured),
        },
        "not_analysed": [list(head[:2]) for head in found.not_analysed],
        "not_captured": not_captured,
        "failures": [
            {**dict(zip(("layer", "q_head", "k_head"), head, strict=True)), "reason": reason}
            for head, reason in found.failed.items()
        ],
        "warnings": [asdict(warning) for warning in warnings],
        "missing": missing_records(collected.missing),
        **collected.means(eligible_heads(content or {}, all_heads=all_heads)),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in NUMERIC_LIBRARIES},
        },
    }


def _record(means: Mapping[str, MeanEstimate]) -> dict[str, Any]:
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
