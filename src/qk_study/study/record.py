"""study.json: settings, versions, and fingerprints of what the study was made from."""

from __future__ import annotations

import json
import math
import platform
from importlib.metadata import version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.run_info import NUMERIC_LIBRARIES, sha256_of
from qk_study.study.results import StudyResults
from qk_study.study.steps import StudiedModel
from qk_toolkit.errors import without_secrets

_FORMAT = 1
_LIBRARIES = (*NUMERIC_LIBRARIES, "pandas", "matplotlib")


def study_record(results: StudyResults) -> str:
    """The content of study.json. It has no times, so that a repeated command writes the same."""
    settings = results.settings
    record = {
        "format_version": _FORMAT,
        "attention_plasticity": __version__,
        "settings_file": settings.file,
        "output_dir": settings.output_dir,
        "settings": settings.content.model_dump(
            mode="json", exclude={"dry_run", "output_dir"}, exclude_none=True
        ),
        "models": [_model(one) for one in results.models],
        "scores": _scores(results),
        "cautions": results.cautions,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
        },
    }
    return without_secrets(json.dumps(record, indent=2, ensure_ascii=False, default=str)) + "\n"


def _model(one: StudiedModel) -> dict[str, Any]:
    entry = one.plan.model.entry
    found: dict[str, Any] = {
        "label": one.plan.label,
        "folder": one.plan.model.folder,
        "source": entry.source,
        "place": entry.place,
        "run": one.plan.run,
    }
    for name in ("family", "size", "checkpoint", "phase"):
        if getattr(entry, name) is not None:
            found[name] = getattr(entry, name)
    found["parts"] = {part.kind: part.values for part in one.plan.parts}
    if one.run is None:
        return found | {"failure": one.failure}
    return found | _of_run(one.run)


def _of_run(run: FinishedRun) -> dict[str, Any]:
    """What identifies the dump, the texts and the tables of a run."""
    source = run.info.get("input") or {}
    return {
        "heads": run.info.get("heads"),
        "texts": run.texts or None,
        "dump_fingerprint": source.get("fingerprint"),
        "capture_versions": run.dump.get("versions"),
        "analysis_versions": run.info.get("versions"),
        "sha256": run.info.get("sha256") or {"head_metrics": sha256_of(run.path("head_metrics"))},
    }


def _scores(results: StudyResults) -> list[dict[str, Any]]:
    if results.scores is None:
        return []
    rows = results.scores.sources.to_dict("records")
    return [
        {str(name): value for name, value in row.items() if not _is_missing(value)} for row in rows
    ]


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
