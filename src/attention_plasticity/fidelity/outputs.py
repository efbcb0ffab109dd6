"""The table of fidelity and fidelity.json, which has settings, input and means over key heads."""

from __future__ import annotations

import csv
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.metrics import FIDELITY
from attention_plasticity.run.head_means import MeanEstimate, mean_estimate
from attention_plasticity.run.outputs import FIDELITY_INFO, sha256_of
from attention_plasticity.run.plan import Group
from attention_plasticity.run.run_info import NUMERIC_LIBRARIES
from attention_plasticity.tables.names import SCORE_WORDS
from qk_toolkit.files import staged, write_through

_ORDER = list(SCORE_WORDS)


@dataclass(frozen=True)
class ScoreMeans:
    """Means over key heads of the numbers of one score."""

    score: str
    value_norm: int
    numbers: dict[str, MeanEstimate]


def means_of(key_heads: Sequence[Mapping[str, Any]]) -> list[ScoreMeans]:
    """Means over key heads. Their errors come from the same texts, so influences are averaged."""
    rows: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for content in key_heads:
        for row in content["rows"]:
            rows.setdefault((row["score"], row["value_norm"]), []).append(row)
    order = sorted(rows, key=lambda name: (_ORDER.index(name[0]), name[1]))
    return [
        ScoreMeans(*name, {number: _mean(rows[name], number) for number in FIDELITY.with_error})
        for name in order
    ]


def _mean(rows: Sequence[Mapping[str, Any]], number: str) -> MeanEstimate:
    values, influences, groups = zip(*(row[number] for row in rows), strict=True)
    return mean_estimate(values, influences, groups)


def write_results(
    folder: Path,
    measured: Mapping[Group, Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> list[ScoreMeans]:
    """Write both files in one step, and return the means. Without a key head, no table is written.

    The old fidelity.json is deleted before the table is replaced, so that the two never disagree.
    """
    means = means_of([measured[group] for group in _sorted(measured)])
    info_path, table_path = folder / FIDELITY_INFO, folder / FIDELITY.file
    with ExitStack() as stack:
        info = stack.enter_context(staged(info_path))  # entered first, so renamed last
        digest = None
        if measured:
            table = stack.enter_context(staged(table_path))
            _write_table(table, measured)
            digest = sha256_of(table)
        content = {
            "attention_plasticity": __version__,
            **facts,
            "key_heads": {"measured": len(measured), "failed": len(failures)},
            "failures": list(failures),
            "means": [_record(one) for one in means],
            "table": FIDELITY.file if measured else None,
            "sha256": digest,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in NUMERIC_LIBRARIES},
            },
        }
        write_through(info, json.dumps(content, indent=2, allow_nan=False) + "\n")
        info_path.unlink(missing_ok=True)
        if not measured:
            table_path.unlink(missing_ok=True)
    return means


def _sorted(measured: Mapping[Group, Any]) -> list[Group]:
    return sorted(measured, key=lambda group: (group.layer, group.k_head))


def _write_table(path: Path, measured: Mapping[Group, Mapping[str, Any]]) -> None:
    """Floats have the shortest text that restores them exactly, or `nan`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIDELITY.names)
        for group in _sorted(measured):
            content = measured[group]
            for row in content["rows"]:
                values = {**content, **row, "layer": group.layer, "k_head": group.k_head}
                for name in FIDELITY.with_error:
                    value, influences, _ = row[name]
                    values[name] = value
                    values[f"{name}_se"] = math.sqrt(math.fsum(one**2 for one in influences))
                writer.writerow([values[name] for name in FIDELITY.names])
        file.flush()
        os.fsync(file.fileno())


def _record(means: ScoreMeans) -> dict[str, Any]:
    """Means without NaN, which JSON does not have."""
    return {
        "score": means.score,
        "value_norm": means.value_norm,
        **{
            name: {
                "value": _known(mean.value),
                "standard_error": _known(mean.standard_error),
                "key_heads": mean.heads,
                "groups": mean.groups or None,
            }
            for name, mean in means.numbers.items()
        },
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
