"""The settings that decide the results of a run, and how those of two runs differ."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from attention_plasticity import __version__
from attention_plasticity.config import ANALYSIS_FIELDS, RunnerConfig
from attention_plasticity.head.layout import HeadLayout
from qk_dump.layout import Dump
from qk_toolkit.formatting import index_ranges

NUMERIC_LIBRARIES = ("numpy", "scipy", "pyarrow")


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
        **{name: getattr(config, name) for name in (*ANALYSIS_FIELDS, "layers", "heads")},
        **({} if dump.rotary is None else {"rotary": dump.rotary.digest}),
    }


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
