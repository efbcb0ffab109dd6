"""`budget.npy` as `BudgetPress` reads it, compared with the `PROVENANCE.json` beside it."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np

from attention_plasticity.export.folder import PROVENANCE
from qk_toolkit.arrays import Array
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import open_regular, read_json
from qk_toolkit.model_files import files_hash

PERCENTS = 99  # rows of a file
_AGAIN = "Export the budgets again"


def read_provenance(path: Path, *, needed: bool = True) -> Mapping[str, Any]:
    """What `PROVENANCE.json` beside a budget file says; empty without it.

    Raises a `ConfigError` for a damaged one if it is `needed`.
    """
    place = path.with_name(PROVENANCE)
    try:
        facts = read_json(place)
        if not isinstance(facts, dict):
            raise ValueError("is not a JSON object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        if not needed:
            return {}
        raise ConfigError(
            f"{place}: cannot be read: {error}. {_AGAIN}, or give any_model=True to leave it out"
        ) from error
    return facts


def read_curves(path: Path, facts: Mapping[str, Any]) -> Array:
    """(99, layers, key heads) shares to prune.

    Raises a `ConfigError` for a file whose sha256 is not the one in `PROVENANCE.json`, or whose
    content is no such array. Broken headers raise many kinds of errors in numpy.
    """
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    _require_sha256(path, content, facts)
    try:
        curves = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, SyntaxError, TokenError, MemoryError, BadZipFile) as error:
        raise ConfigError(
            f"{path}: cannot be read as an array of numbers: {' '.join(str(error).split())}. Give "
            "OUT/budget.npy of an export"
        ) from error
    if not isinstance(curves, np.ndarray) or curves.ndim != 3 or len(curves) != PERCENTS:
        shape = getattr(curves, "shape", None)
        raise ConfigError(
            f"{path}: expected an array of the shape (99, layers, key heads), got {shape}"
        )
    if curves.dtype.kind != "f" or not ((curves >= 0.0) & (curves <= 1.0)).all():
        raise ConfigError(f"{path}: expected shares from 0 to 1; at least one value is not")
    return curves.astype(np.float64)


def _require_sha256(path: Path, content: bytes, facts: Mapping[str, Any]) -> None:
    hashes = facts.get("sha256")
    recorded = hashes.get(path.name) if isinstance(hashes, dict) else None
    if recorded is not None and recorded != hashlib.sha256(content).hexdigest():
        raise ConfigError(
            f"{path}: is damaged or was changed: its sha256 is not the one in {PROVENANCE} beside "
            f"it. {_AGAIN}, or copy the whole folder again"
        )


def require_model(path: Path, facts: Mapping[str, Any], name: str, commit: str | None) -> None:
    """Raise a `ConfigError` unless budgets are those of the model `name`.

    A folder is compared by the hash of its files, if the dump was captured from a folder. Else the
    whole name is compared: `owner/name`, or a folder whose path ends with it. Another commit of the
    same model is a warning.
    """
    made_for, files = str(facts.get("model") or ""), facts.get("model_files")
    if not made_for or not name:
        return
    own = f"budgets of {made_for}, the model is {name}"
    found = None if files is None else files_hash(Path(name).expanduser())
    if found is not None and found != files:
        raise ConfigError(
            f"{path}: has {own}, whose files are others. Export the budgets of this model, or give "
            "any_model=True to use these"
        )
    if found is None and not _is_name(made_for, name):
        raise ConfigError(
            f"{path}: has {own}. Export the budgets of this model, or give any_model=True to use "
            "these"
        )
    recorded = facts.get("revision")
    if found is None and commit is not None and recorded not in (None, commit):
        warnings.warn(
            f"{path}: has {own}, but of the revision {recorded}, not {commit}. If the weights "
            "differ, export the budgets of this revision",
            stacklevel=2,
        )


def _is_name(made_for: str, name: str) -> bool:
    """Whether a model has this name, or is in a folder whose path ends with it."""
    wanted, parts = (PurePosixPath(one.lower()).parts for one in (made_for, name))
    if wanted == parts:
        return True
    return len(wanted) == 2 and parts[-2:] == wanted and Path(name).expanduser().is_dir()
