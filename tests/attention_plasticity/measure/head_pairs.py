"""A query head and a key head in files of their own, and their analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attention_plasticity import analyze_head, make_config, open_dump
from attention_plasticity.measure.result import HeadResult
from dumps import head_rows
from qk_dump.manifest import DumpManifest, write_manifest
from reference import write_rows


def small_head(seed: int, **changes: Any) -> dict[str, Any]:
    """60 rows of one text, with other columns where `changes` says so."""
    return {**head_rows(n=60, d=4, examples=1, seed=seed), **changes}


def write_pair(root: Path, queries: dict[str, Any], keys: dict[str, Any]) -> Path:
    """Write query head 0 and key head 0 of layer 0."""
    write_rows(root, "l00h00q", **queries)
    write_rows(root, "l00h00k", **keys)
    return root


def without_rope(root: Path, **facts: Any) -> Path:
    """Say that the layer has no RoPE, so that plasticity at one position is known."""
    layer = {"layer": 0, "type": "full_attention", "rope": False, **facts}
    write_manifest(root, DumpManifest(layers=[layer]))
    return root


def analyze(root: Path, q_head: int = 0, **settings: Any) -> HeadResult:
    """Analyse that head."""
    return analyze_head(0, q_head, 0, open_dump(root), make_config(**settings))
