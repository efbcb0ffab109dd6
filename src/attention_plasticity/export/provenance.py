"""What `PROVENANCE.json` says about the place that the numbers come from."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.estimate.quantity import MIN_GROUPS
from attention_plasticity.estimate.sizes import GROUPS
from attention_plasticity.export.source import SEED, ExportSource
from attention_plasticity.read.repeated import with_repeated
from attention_plasticity.read.rows import why_no_weights
from attention_plasticity.run.fingerprints import InputFiles
from attention_plasticity.tables.finished_run import FinishedRun
from qk_dump.source import open_dump
from qk_toolkit.errors import ToolkitError, without_tokens
from qk_toolkit.files import user_path
from qk_toolkit.urls import is_remote

_LIBRARIES = ("numpy", "pyarrow", "safetensors", "torch")
_ERRORS = (
    f"An error is a standard error over texts, from {GROUPS} groups of texts: how the number "
    "changes if a group is left out. A relative error is the length of the standard errors of all "
    "entries / the length of the value (Frobenius). null: the texts of rows are not known, or "
    f"fewer than {MIN_GROUPS} groups have rows."
)


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
        "seed": SEED,
        "errors": _ERRORS,
        "capture_versions": manifest.versions,
    }


def facts_of_run(run: FinishedRun, note: Callable[[str], None]) -> dict[str, Any]:
    """The model, the run, and the dump and the texts that it analysed.

    `note` gets a line if the dump has changed since.
    """
    source = run.info.get("input") or {}
    changed = dump_changed(run)
    if changed:
        note(
            f"{source['path']}: has changed since the analysis; the values are those of "
            f"{run.place}. For values of the dump as it is now, analyze it again"
        )
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
        "dump_changed": changed,
        "texts": run.texts or None,
        "context": None if math.isnan(run.context) else run.context,
    }


def dump_changed(run: FinishedRun) -> bool | None:
    """Whether the heads of the dump have other files than when they were analysed.

    None if this is not known: the dump is not on this machine, or the run has no fingerprint. A
    dump of the Hub has a commit in its place.
    """
    source = run.info.get("input") or {}
    path, recorded = source.get("path"), source.get("fingerprint")
    if not path or not recorded or source.get("hub") or is_remote(path):
        return None
    if not user_path(path).is_dir():
        return None
    heads = replace(run, layers=None).head_metrics[["layer", "q_head", "k_head"]]
    try:
        dump = with_repeated(open_dump(path), run.settings.get("repeated"))
        now = InputFiles(dump).joint(heads.itertuples(index=False, name=None))
    except ToolkitError:
        return None
    return bool(now != recorded)


def _model(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The model of a dump, from its dump.json."""
    model = (manifest.get("capture") or {}).get("model")
    facts = model if isinstance(model, dict) else {}
    return {
        "model": manifest.get("model"),
        "revision": manifest.get("revision") or facts.get("commit") or facts.get("revision"),
        "model_files": facts.get("files"),
    }


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of libraries that write files."""
    found = {"python": platform.python_version(), "attention-plasticity": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
