"""Reading of run.json, with a check of the type of every entry."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from qk_dump.manifest import DumpManifest
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import open_regular, read_json

RUN_FILE = "run.json"
NUMERIC_LIBRARIES = ("numpy", "scipy", "pyarrow")
"""Libraries whose versions can change the values of a run."""


class _Members(BaseModel):
    """Entries of run.json. Unknown entries are kept."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class _Settings(_Members):
    query_model: str = ""
    pair_sampling: str = ""
    single_example: bool = False
    equal_texts: bool = False
    max_rel_dist: float = 0.0


class _Texts(_Members):
    count: NonNegativeInt
    digest: str | None


class _Mean(_Members):
    value: float
    standard_error: float | None
    heads: NonNegativeInt
    groups: NonNegativeInt | None = None  # of texts
    standard_error_texts: float | None = None
    eligible_heads: NonNegativeInt | None = None


class _Input(_Members):
    path: str = ""
    hub: dict[str, Any] | None = None
    fingerprint: str = ""
    texts: _Texts | None = None
    dump: DumpManifest | None = None


class _HeadLayout(_Members):
    num_layers: NonNegativeInt = 0
    num_q_heads: NonNegativeInt = 0
    num_k_heads: NonNegativeInt = 0


class _HeadCounts(_Members):
    analysed: NonNegativeInt = 0
    failed: NonNegativeInt = 0
    not_captured: NonNegativeInt = 0
    not_analysed: NonNegativeInt = 0


class _Failure(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    layer: int
    q_head: int
    k_head: int
    reason: str


class _Warning(_Members):
    kind: str = ""
    text: str
    reasons: list[str] = []


class _Missing(_Members):
    table: str
    columns: list[str]
    reason: str
    heads: NonNegativeInt
    where: dict[str, str]


class _FidelityFailure(_Members):
    layer: int
    k_head: int
    reason: str


class _FidelityMean(_Members):
    value: float | None
    standard_error: float | None
    groups: NonNegativeInt | None


class _FidelityMeans(_Members):
    score: str
    value_norm: NonNegativeInt
    spearman: _FidelityMean
    kept_50: _FidelityMean
    kept_25: _FidelityMean
    kept_10: _FidelityMean


class _Fidelity(_Members):
    near: NonNegativeInt
    first_query: NonNegativeInt
    failures: list[_FidelityFailure] = []
    means: list[_FidelityMeans] = []


class _RunInfo(_Members):
    attention_plasticity: str = ""
    config: _Settings = _Settings()
    seed: int = 0
    bin_size: NonNegativeInt | None = None
    longest_text: NonNegativeInt | None = None
    input: _Input = _Input()
    head_layout: _HeadLayout = _HeadLayout()
    heads: _HeadCounts = _HeadCounts()
    not_captured: list[list[int]] = []
    not_analysed: list[list[int]] = []
    failures: list[_Failure] = []
    warnings: list[_Warning] = []
    missing: list[_Missing] = []
    means: dict[str, _Mean] = {}
    means_by_layer_type: dict[str, dict[str, _Mean]] = {}
    key_head_means: dict[str, _Mean] = {}
    drift_means: dict[str, _Mean] = {}
    fidelity: _Fidelity | None = None
    tables: dict[str, str] = {}
    sha256: dict[str, str] = {}
    finished: str = ""
    seconds: float = 0.0
    versions: dict[str, str] = {}


def read_run_info(file: Path) -> dict[str, Any]:
    """The content of run.json.

    Raises a `ConfigError` that names a wrong entry, or `FileNotFoundError`.
    """
    try:
        info: dict[str, Any] = read_json(file)
        _RunInfo.model_validate(info)
    except FileNotFoundError:
        raise
    except ValidationError as error:
        problem = error.errors()[0]
        where = "".join(f"{part}: " for part in problem["loc"])
        raise ConfigError(
            f"{file}: {where}{_reason(problem)}. "
            "The file was edited or damaged; run the analysis again"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: cannot be read: {reason}. Run the analysis again") from error
    return info


_EXPECTED = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "string_type": "text",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
}


def _reason(problem: Any) -> str:
    if problem["type"] == "missing":
        return "is missing"
    if problem["type"] in _EXPECTED:
        return f"expected {_EXPECTED[problem['type']]}, got {problem['input']!r:.60}"
    return str(problem["msg"].removeprefix("Value error, "))


def sha256_of(path: Path) -> str | None:
    """Hash of the content of a file; None if the file cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # ValueError: invalid file name
        return None
