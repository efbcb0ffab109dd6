"""The table of the models: what they are, how they were captured, and how many heads and texts."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from attention_plasticity.compare.writers import UNKNOWN, Table
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.names import clean
from qk_study.results import StudyResults
from qk_study.settings import StudyModel

_COLUMNS = (
    *("model", "family", "size", "checkpoint", "phase", "source", "name", "revision"),
    *("layers", "query_heads", "key_heads", "head_dim", "heads_analysed", "heads_failed"),
    *("texts", "context", "precision", "sampler", "bucket_size", "bin_size"),
    *("pair_sampling", "pairs_per_bucket", "pairs_per_bin", "query_model", "seed"),
)
_SHOWN = {
    "family": "family",
    "size": "size",
    "checkpoint": "checkpoint",
    "phase": "phase",
    "layers": "layers",
    "query_heads": "query heads",
    "key_heads": "key heads",
    "heads_analysed": "analysed",
    "texts": "texts",
    "context": "context",
}
_NOTE = (
    "Heads are per layer; analysed: all heads with results. Context: tokens of the longest text."
)
_SHORTENED = 1e6  # checkpoints from this number on are shortened
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def models_frame(results: StudyResults) -> pd.DataFrame:
    """One row per model with a run."""
    rows = [_row(plan.model, run) for plan, run in results.finished]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def written_models(results: StudyResults) -> Table:
    """The columns for readers. Family, size, checkpoint and phase only if a model has them."""
    frame = models_frame(results)
    names = [name for name in _SHOWN if frame[name].notna().any() and (frame[name] != "").any()]
    lines = tuple(
        (clean(str(row["model"])), *(_cell(name, row[name]) for name in names))
        for row in frame.to_dict("records")
    )
    headings = ("model", *(_SHOWN[name] for name in names))
    return Table("The models of the study.", headings, lines, _NOTE)


def _row(model: StudyModel, run: FinishedRun) -> dict[str, Any]:
    entry, dump = model.entry, run.dump
    sampler, layout = dump.get("sampler") or {}, run.layout
    row = {
        "model": model.label,
        "family": entry.family or "",
        "size": math.nan if entry.size is None else entry.size,
        "checkpoint": math.nan if entry.checkpoint is None else entry.checkpoint,
        "phase": entry.phase or "",
        "source": entry.source,
        "name": clean(str(dump.get("model") or "")),
        "revision": clean(str(dump.get("revision") or "")),
        "layers": layout.get("num_layers"),
        "query_heads": layout.get("num_q_heads"),
        "key_heads": layout.get("num_k_heads"),
        "head_dim": dump.get("head_dim"),
        "heads_analysed": len(run.head_metrics),
        "heads_failed": len(run.failures),
        "texts": run.texts.get("count"),
        "context": run.context,
        "precision": clean(str(dump.get("dtype") or "")),
        "sampler": clean(str(sampler.get("type") or "")),
        "bucket_size": dump.get("min_bucket_size"),
        "bin_size": run.info.get("bin_size"),
    }
    names = {name: name for name in ("pair_sampling", "query_model", "seed")}
    names |= {f"pairs_per_{part}": f"num_pairs_per_{part}" for part in ("bucket", "bin")}
    return row | {name: run.settings.get(own, "") for name, own in names.items()}


def _cell(name: str, value: Any) -> str:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    if name == "size" or (name == "checkpoint" and value >= _SHORTENED):
        return short_number(float(value))
    return clean(value) if isinstance(value, str) else f"{value:,.0f}"


def short_number(number: float) -> str:
    """`135M` for 135,000,000, `1.7B` for 1,700,000,000."""
    for unit, sign in _UNITS:
        if number >= unit:
            return f"{number / unit:.3g}{sign}"
    return f"{number:g}"
