"""Static error of key heads, from the table of an analysis of the same dump."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_plasticity.export.source import ExportSource
from attention_plasticity.metrics import KEY_HEADS
from attention_plasticity.tables.finished_run import FinishedRun
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError

RULE = (
    "static error of the key head: share of later queries of its group whose preferred key the "
    "majority of the other queries does not predict"
)


def static_error(source: ExportSource, place: str) -> tuple[Array, list[dict[str, Any]]]:
    """(layers, key heads) static errors of a run, and entries of PROVENANCE.json."""
    run = FinishedRun.open(place)
    if not run.has_key_heads:
        raise ConfigError(f"--run: {place}: has no {KEY_HEADS.file}; run the analysis again")
    manifest = source.dump.manifest
    if manifest is None or run.dump != manifest.model_dump(exclude_none=True):
        raise ConfigError(f"--run: {place}: is not an analysis of {source.dump.path}")
    found = np.full((source.layout.num_layers, source.layout.num_k_heads), np.nan)
    entries: list[dict[str, Any]] = []
    for row in run.key_heads.to_dict("records"):
        layer, head, value = int(row["layer"]), int(row["k_head"]), float(row["static_error"])
        found[layer, head] = value
        entries.append(
            {
                "layer": layer,
                "k_head": head,
                "q_heads": int(row["n_q_heads"]),
                "pairs": int(row["n_pairs"]),
                "static_error": value,
                "static_error_error": float(row["static_error_se"]),
            }
        )
    missing = np.argwhere(np.isnan(found))
    if len(missing):
        layer, head = missing[0]
        raise ConfigError(
            f"--run: {place}: has no static error of key head {head} of layer {layer}; analyse all "
            "heads of a dump that has all of them"
        )
    return found, entries
