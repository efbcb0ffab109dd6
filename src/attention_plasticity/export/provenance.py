"""`PROVENANCE.json`: where the numbers of an exported file come from, and how sure they are."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.export.content import Content
from attention_plasticity.export.source import ExportSource
from attention_plasticity.head.token_weights import why_no_weights
from attention_plasticity.numeric.errors.text_groups import MIN_GROUPS
from attention_plasticity.numeric.sizes import GROUPS
from qk_toolkit.errors import without_tokens

MADE_BY = "attention-plasticity export"

_LIBRARIES = ("numpy", "pyarrow", "safetensors", "torch")
_ERRORS = (
    "An error is a standard error over texts, from {groups} groups of texts. A relative error is "
    "the length of the standard errors of all entries / the length of the value (Frobenius). "
    "null: the texts of rows are not known, or fewer than {fewest} groups have rows."
)


def provenance(source: ExportSource, kind: str, content: Content, command: str) -> dict[str, Any]:
    """Everything about an export except the hashes of its files."""
    manifest = source.manifest
    model = (manifest.capture or {}).get("model")
    facts = model if isinstance(model, dict) else {}
    why = why_no_weights(manifest)
    return {
        "made_by": MADE_BY,
        "format": kind,
        "model": manifest.model,
        "revision": manifest.revision or facts.get("commit") or facts.get("revision"),
        "model_files": facts.get("files"),
        "dump": without_tokens(str(source.dump.path)),
        "hub": source.dump.origin,
        "captured_before_rope": bool(manifest.pre_rope),
        "rotary": None if source.dump.rotary is None else source.dump.rotary.as_record(),
        "texts": source.texts.as_input,
        "weights": "1 / probability that the token was kept" if why is None else f"1: {why}",
        "max_tokens_per_head": source.max_rows,
        "seed": source.seed,
        "rules": dict(content.rules),
        "errors": _ERRORS.format(groups=GROUPS, fewest=MIN_GROUPS),
        "heads": content.heads,
        "versions": versions(),
        "capture_versions": manifest.versions,
        "command": without_tokens(command),
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
