"""Reading of run.json, with a check of the type of every entry.

The settings that decide the results of a run, and how those of two runs differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from attention_plasticity import __version__
from attention_plasticity.config import ANALYSIS_FIELDS, RunnerConfig
from attention_plasticity.read.layout import HeadLayout
from attention_plasticity.read.repeated import repeated_digest
from qk_dump.layout import Dump
from qk_dump.manifest import DumpManifest
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_json
from qk_toolkit.formatting import index_ranges

NUMERIC_LIBRARIES = ("numpy", "scipy", "pyarrow")
_CHOICE = ("layers", "heads")  # of heads; it does not change the values of a head


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
    not_captured: NonNegativeInt = 0
    failed: NonNegativeInt = 0


class _Failure(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    layer: int
    q_head: int
    k_head: int
    reason: str


class _Warning(_Members):
    text: str


class _Missing(_Members):
    table: str
    columns: list[str]
    reason: str
    heads: NonNegativeInt
    where: dict[str, str]


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
    failures: list[_Failure] = []
    warnings: list[_Warning] = []
    missing: list[_Missing] = []
    means: dict[str, _Mean] = {}
    means_by_layer_type: dict[str, dict[str, _Mean]] = {}
    key_head_means: dict[str, _Mean] = {}
    drift_means: dict[str, _Mean] = {}
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


def run_settings(config: RunnerConfig, layout: HeadLayout, dump: Dump) -> dict[str, Any]:
    """All values that change the results of a run, except the files of the dump.

    A file of rotary records and a dump of repeated tokens count by their content.
    """
    return {
        "version": __version__,
        **{name: version(name) for name in NUMERIC_LIBRARIES},
        "num_layers": layout.num_layers,
        "num_q_heads": layout.num_q_heads,
        "num_k_heads": layout.num_k_heads,
        **{name: getattr(config, name) for name in (*ANALYSIS_FIELDS, *_CHOICE)},
        **({} if dump.rotary is None else {"rotary": dump.rotary.digest}),
        **({} if config.repeated is None else {"repeated": repeated_digest(dump)}),
    }


def settings_of_head(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide the values of a head."""
    return {name: value for name, value in settings.items() if name not in _CHOICE}


def adds_heads(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a run has all heads of an earlier one, and more, with otherwise equal settings."""
    return (
        earlier != now
        and settings_of_head(earlier) == settings_of_head(now)
        and all(_includes(now[name], earlier.get(name)) for name in _CHOICE)
    )


def _includes(now: list[int] | None, earlier: list[int] | None) -> bool:
    """Whether a choice has every number of another one; None stands for all numbers."""
    return now is None or (earlier is not None and set(earlier) <= set(now))


def settings_difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The settings in which two runs differ, with both values; empty if they are equal."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return ", ".join(
        f"{name} ({_setting_text(name, one)} and {_setting_text(name, other)})" for name in names
    )


def changed_settings(earlier: dict[str, Any], now: dict[str, Any]) -> str:
    """The settings that have changed, with their values then and now."""
    names = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    return ", ".join(
        f"{name} ({_setting_text(name, earlier)} then, {_setting_text(name, now)} now)"
        for name in names
    )


def _setting_text(name: str, settings: dict[str, Any]) -> str:
    if name not in settings:
        return "not recorded"
    value = settings[name]
    if isinstance(value, list):
        return index_ranges(value)
    return "all" if value is None else str(value)
