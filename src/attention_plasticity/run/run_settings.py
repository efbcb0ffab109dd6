"""The settings that decide the results of a run, and how those of two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.config import ANALYSIS_FIELDS, RunnerConfig
from attention_plasticity.head.layout import HeadLayout
from qk_dump.layout import Dump
from qk_toolkit.formatting import index_ranges

NUMERIC_LIBRARIES = ("numpy", "scipy", "pyarrow")
_CHOICE = ("layers", "heads")  # of heads; it does not change the values of a head


def run_settings(config: RunnerConfig, layout: HeadLayout, dump: Dump) -> dict[str, Any]:
    """All values that change the results of a run, except the files of the dump.

    A file of rotary records counts by its content.
    """
    return {
        "version": __version__,
        **{name: version(name) for name in NUMERIC_LIBRARIES},
        "num_layers": layout.num_layers,
        "num_q_heads": layout.num_q_heads,
        "num_k_heads": layout.num_k_heads,
        **{name: getattr(config, name) for name in (*ANALYSIS_FIELDS, *_CHOICE)},
        **({} if dump.rotary is None else {"rotary": dump.rotary.digest}),
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
