"""Baselines of a run as lines of text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attention_plasticity.metrics import METRICS, PHASE
from attention_plasticity.run.outputs import RUN_FILE
from attention_plasticity.run.run_info import read_run_info
from attention_plasticity.tables.baselines import (
    FOLDER,
    Baseline,
    baselines_of,
    recorded_mean,
)
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
)
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError
from qk_toolkit.formatting import count


def baseline_lines(run: Path, shown: PlasticityColumns, only: str | None = None) -> list[str]:
    """One line per baseline of the run in a folder; an error becomes a line.

    With `only`, the line of the baseline with this name.
    """
    if not (run / FOLDER).is_dir():
        return []
    try:
        found = baselines_of(run, read_run_info(run / RUN_FILE))
    except (ConfigError, OSError) as error:
        show_traceback(error)
        return [f"baselines: {error}"]
    found = [one for one in found if only in (None, one.name)]
    lines = [f"{one.words}: {_values(one, shown)}" for one in found if one.fits]
    return lines + _not_shown(run, found)


def run_lines(info: Mapping[str, Any]) -> list[str]:
    """The means of a run, as the first lines of a comparison with its baselines."""
    shown = _shown(info)
    return [f"Attention plasticity {shown.words}", f"this run: {_means(info, shown)}"]


def lines_of_baseline(run: Path, info: Mapping[str, Any], name: str) -> list[str]:
    """The means of one baseline of a run, as the next line of such a comparison."""
    return baseline_lines(run, _shown(info), name)


def _shown(info: Mapping[str, Any]) -> PlasticityColumns:
    known = not math.isnan(recorded_mean(info, AT_ONE_POSITION.level)[0])
    return AT_ONE_POSITION if known else OVER_BUCKETS


def _values(baseline: Baseline, shown: PlasticityColumns) -> str:
    heads = (baseline.info.get("heads") or {}).get("analysed") or 0
    texts = f", {count(baseline.texts, 'text')}" if baseline.texts else ""
    return f"{_means(baseline.info, shown)}; baseline, {count(heads, 'head')}{texts}"


def _means(info: Mapping[str, Any], shown: PlasticityColumns) -> str:
    words = {shown.level: "", shown.drop: ", drop "}
    if shown is AT_ONE_POSITION:
        words[PHASE] = ", rotary phase "
    parts = ""
    for column, word in words.items():
        value, error = recorded_mean(info, column)
        if word and math.isnan(value):
            continue
        parts += word + METRICS["ap_overall"].show(value)
        parts += "" if math.isnan(error) else f" ± {error:.3f}"
    return parts


def _not_shown(run: Path, found: list[Baseline]) -> list[str]:
    """A line about baselines of other settings, which cannot be compared with the run."""
    other = [one.words for one in found if not one.fits]
    if not other:
        return []
    return [
        f"baselines with {' and '.join(other)}: made for another capture or other settings of the "
        f"analysis, not shown; repeat attention-plasticity baseline {run}"
    ]
