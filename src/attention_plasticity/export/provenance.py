"""`PROVENANCE.json`: where the numbers of an exported file come from, and how sure they are."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.estimate.quantity import MIN_GROUPS
from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.export.content import Content
from attention_plasticity.export.source import ExportSource
from attention_plasticity.read.weights import why_no_weights
from attention_plasticity.tables.finished_run import FinishedRun
from qk_toolkit.errors import without_tokens

MADE_BY = "attention-plasticity export"

_LIBRARIES = ("numpy", "pyarrow", "safetensors", "torch")
_ERRORS = (
    "An error is a standard error over texts, from {groups} groups of texts. A relative error is "
    "the length of the standard errors of all entries / the length of the value (Frobenius). "
    "null: the texts of rows are not known, or fewer than {fewest} groups have rows."
)


def provenance(
    kind: str, origin: Mapping[str, Any], content: Content, command: str
) -> dict[str, Any]:
    """Everything about an export except the hashes of its files.

    `origin` is where the numbers come from: `facts_of_dump` or `facts_of_run`.
    """
    return {
        "made_by": MADE_BY,
        "format": kind,
        **origin,
        "rules": dict(content.rules),
        **({} if content.evidence is None else {"evidence": content.evidence}),
        "heads": content.heads,
        "versions": versions(),
        "command": without_tokens(command),
    }


def facts_of_dump(source: ExportSource) -> dict[str, Any]:
    """The model, the dump and its texts."""
    manifest = source.manifest
    why = why_no_weights(manifest)
    return {
        **_model(manifest.model_dump(exclude_none=True)),
        "num_layers": source.layout.num_layers,
        "num_k_heads": source.layout.num_k_heads,
        "dump": without_tokens(str(source.dump.path)),
        "hub": source.dump.origin,
        "captured_before_rope": bool(manifest.pre_rope),
        "rotary": None if source.dump.rotary is None else source.dump.rotary.as_record(),
        "texts": source.texts.as_input,
        "weights": "1 / probability that the token was kept" if why is None else f"1: {why}",
        "max_tokens_per_head": source.max_rows,
        "seed": source.seed,
        "errors": _ERRORS.format(groups=GROUPS, fewest=MIN_GROUPS),
        "capture_versions": manifest.versions,
    }


def facts_of_run(run: FinishedRun) -> dict[str, Any]:
    """The model, the run, and the dump and the texts that it analysed."""
    source = run.info.get("input") or {}
    return {
        **_model(run.dump),
        "num_layers": run.layout["num_layers"],
        "num_k_heads": run.layout["num_k_heads"],
        "run": without_tokens(run.place),
        "run_tables_sha256": run.info.get("sha256"),
        "analysis_version": run.info.get("attention_plasticity"),
        "dump": without_tokens(str(source.get("path"))),
        "hub": source.get("hub"),
        "dump_fingerprint": source.get("fingerprint"),
        "texts": run.texts or None,
        "context": None if math.isnan(run.context) else run.context,
    }


def _model(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The model of a dump, from its dump.json."""
    model = (manifest.get("capture") or {}).get("model")
    facts = model if isinstance(model, dict) else {}
    return {
        "model": manifest.get("model"),
        "revision": manifest.get("revision") or facts.get("commit") or facts.get("revision"),
        "model_files": facts.get("files"),
    }


def provenance_text(facts: Mapping[str, Any]) -> str:
    """Indented JSON with one line per head."""
    whole = json.dumps({**facts, "heads": []}, indent=2, ensure_ascii=False)
    lines = ",\n".join(f"    {json.dumps(head)}" for head in facts["heads"])
    return whole.replace('\n  "heads": []', f'\n  "heads": [\n{lines}\n  ]', 1) + "\n"


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of libraries that write files."""
    found = {"python": platform.python_version(), "attention-plasticity": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
