"""The files of a budget: a table, the same for people and programs to read, and gates."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.budget.division import Division
from attention_plasticity.budget.evidence import EVIDENCE
from attention_plasticity.export.content import Writer, text_file
from attention_plasticity.export.duo import DuoOptions, gate_files
from attention_plasticity.export.provenance import versions
from attention_plasticity.tables.finished_run import FinishedRun
from qk_toolkit.errors import without_tokens

MADE_BY = "attention-plasticity budget"
TABLE, READABLE = "budget.csv", "budget.yaml"
_RULE = (
    "the mean over counted heads is keep; a head gets 1 + spread of it at rank 1, 1 - spread at "
    "the last rank, linearly between; at most 1, and the rest goes to the other heads"
)
_NOT_COUNTED = (
    "heads of layers with a window or chunks have the budget 1, all keys that their layer sees, "
    "and are not counted in keep"
)
_GATES = (
    "1 for the share keep of counted heads with the largest values, 0 for the others; 1 for heads "
    "of layers with a window, which stay as they are"
)
_RANKS = "95 % interval of the rank, from normal errors of all values: {source}"


def budget_table(division: Division) -> pd.DataFrame:
    """One row per key head."""
    heads = division.heads
    return pd.DataFrame(
        {
            "layer": heads.layer,
            "k_head": heads.k_head,
            "budget": division.budget,
            "rank": division.rank,
            "rank_low": division.rank_low,
            "rank_high": division.rank_high,
            "value": heads.value,
            "standard_error": heads.standard_error,
            "counted": (~heads.bounded).astype(np.int64),
        }
    )


def budget_files(run: FinishedRun, division: Division) -> dict[str, Writer]:
    """Files by name."""
    table = budget_table(division).to_csv(index=False, na_rep="nan", lineterminator="\n")
    files = {TABLE: text_file(table), READABLE: text_file(_yaml(run, division))}
    gates = division.gates
    if gates is not None:
        files |= gate_files(gates, DuoOptions.sink_size, DuoOptions.recent_size)
    return files


def _yaml(run: FinishedRun, division: Division) -> str:
    """Facts, and the budgets of every layer. Texts are JSON, which is YAML as well."""
    heads = division.heads
    facts = {
        "model": run.dump.get("model"),
        "revision": _revision(run),
        "keep": division.keep,
        "order": heads.order,
        "spread": division.spread,
        "evidence": EVIDENCE[heads.order],
    }
    lines = [
        "# Share of the keys of a context that each key head keeps, without the first 4 tokens",
        "# and the recent tokens, which every head keeps.",
        *(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()),
    ]
    if heads.bounded.any():
        layers = sorted(set(heads.layer[heads.bounded].tolist()))
        lines.append(f"not_counted_layers: {json.dumps(layers)}  # with a window: 1 is all of it")
    lines.append("budgets:  # by layer, one number per key head")
    for layer, row in enumerate(division.budget.reshape(heads.shape)):
        lines.append(f"  {layer}: {json.dumps(row.tolist())}")
    return "\n".join(lines) + "\n"


def provenance(run: FinishedRun, division: Division, command: str) -> dict[str, Any]:
    """Everything that PROVENANCE.json says, except the hashes of the files."""
    heads = division.heads
    source = run.info.get("input") or {}
    table = budget_table(division)
    entries = [
        {name: None if value != value else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]
    return {
        "made_by": MADE_BY,
        "model": run.dump.get("model"),
        "revision": _revision(run),
        "model_files": _captured_model(run).get("files"),
        "run": without_tokens(run.place),
        "run_tables_sha256": run.info.get("sha256"),
        "dump": without_tokens(str(source.get("path"))),
        "hub": source.get("hub"),
        "dump_fingerprint": source.get("fingerprint"),
        "texts": run.texts or None,
        "context": None if np.isnan(run.context) else run.context,
        "evidence": EVIDENCE[heads.order],
        "rules": {
            "keep": division.keep,
            "spread": division.spread,
            "order": heads.order,
            "column": heads.column,
            "budgets": _RULE,
            "not_counted": _NOT_COUNTED if heads.bounded.any() else None,
            "gates": None if division.gates is None else _GATES,
            "ranks": _RANKS.format(source=heads.errors_from),
        },
        "heads": entries,
        "versions": versions(),
        "analysis_version": run.info.get("attention_plasticity"),
        "command": without_tokens(command),
    }


def _captured_model(run: FinishedRun) -> dict[str, Any]:
    """What the capture recorded about its model."""
    model = (run.dump.get("capture") or {}).get("model")
    return model if isinstance(model, dict) else {}


def _revision(run: FinishedRun) -> str | None:
    model = _captured_model(run)
    return run.dump.get("revision") or model.get("commit") or model.get("revision")
