"""Baselines of a run: small runs of the same model with random weights or with shuffled tokens.

The verb `baseline` makes them in `RUN/baseline/<name>`, each with its dump. A file beside them
records of which capture they are. Baselines with other settings than the run are not used: their
values cannot be compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_plasticity.metrics import ALIGNED_DROP, METRICS, PHASE
from attention_plasticity.tables.intervals import mean_half_width, recorded_mean
from attention_plasticity.tables.main_plasticity import (
    AT_ONE_POSITION,
    OVER_BUCKETS,
    PlasticityColumns,
)
from attention_plasticity.tables.run_info import RUN_FILE, read_run_info
from qk_toolkit.debugging import show_traceback
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_json, write_text
from qk_toolkit.formatting import count

BASELINES = {"random": "random weights", "shuffled": "shuffled tokens"}
"""The names of the baselines, and what they are."""
FOLDER = "baseline"
DUMP_FOLDER = "dump"
_FILE = "baseline.json"
_SAME_SETTINGS = (
    *("pair_sampling", "query_model", "max_rel_dist", "single_example", "equal_texts"),
)
"""Settings of the analysis that decide which quantity the values are."""


@dataclass(frozen=True)
class Baseline:
    """A finished baseline of a run."""

    name: str
    folder: Path
    info: dict[str, Any]  # its run.json
    fits: bool  # whether it has the capture and the settings of the run

    @property
    def words(self) -> str:
        """`random weights` or `shuffled tokens`."""
        return BASELINES[self.name]

    @property
    def texts(self) -> int:
        """Number of texts; 0 if it is not known."""
        return int(((self.info.get("input") or {}).get("texts") or {}).get("count") or 0)


def baseline_folder(run: Path, name: str) -> Path:
    """The folder of a baseline of the run in a folder."""
    return run / FOLDER / name


def baselines_of(run: Path, info: Mapping[str, Any]) -> list[Baseline]:
    """The finished baselines of the run in a folder. `info` is its run.json."""
    try:
        of_capture = read_json(run / FOLDER / _FILE)["capture"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(run / FOLDER / _FILE, run) from error
    found = []
    for name in BASELINES:
        folder = baseline_folder(run, name)
        try:
            own = read_run_info(folder / RUN_FILE)
        except FileNotFoundError:
            continue
        except ConfigError as error:
            raise _damaged(folder / RUN_FILE, run) from error
        fits = of_capture == capture_digest(info) and _same_settings(info, own)
        found.append(Baseline(name, folder, own, fits))
    return found


def record_capture(run: Path, info: Mapping[str, Any], overwrite: bool = False) -> None:
    """Record of which capture the baselines of a run are.

    Raises a `ConfigError` if there are baselines of another capture and `overwrite` is not set.
    """
    file, digest = run / FOLDER / _FILE, capture_digest(info)
    try:
        found = None if overwrite else read_json(file)["capture"]
    except (OSError, ValueError, TypeError, KeyError):
        found = None
    if found is not None and found != digest:
        raise ConfigError(
            f"{file.parent}: holds baselines of another capture; give --overwrite true to discard "
            "them"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({"capture": digest}) + "\n")


def capture_digest(info: Mapping[str, Any]) -> str:
    """A digest of the settings of the capture of a run."""
    dump = (info.get("input") or {}).get("dump") or {}
    content = json.dumps(dump.get("capture"), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _same_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    ours, theirs = one.get("config") or {}, other.get("config") or {}
    same_bins = one.get("bin_size") in (None, other.get("bin_size"))
    same_heads = (one.get("not_analysed") or []) == (other.get("not_analysed") or [])
    same = all(ours.get(name) == theirs.get(name) for name in _SAME_SETTINGS)
    return same_bins and same_heads and same


def _damaged(file: Path, run: Path) -> ConfigError:
    return ConfigError(
        f"{file}: was edited or damaged; remove the folder {run / FOLDER}, or repeat "
        f"attention-plasticity baseline {run} --overwrite true"
    )


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
    known = recorded_mean(info.get("means") or {}, AT_ONE_POSITION.level).heads
    return AT_ONE_POSITION if known else OVER_BUCKETS


def _values(baseline: Baseline, shown: PlasticityColumns) -> str:
    heads = (baseline.info.get("heads") or {}).get("analysed") or 0
    texts = f", {count(baseline.texts, 'text')}" if baseline.texts else ""
    return f"{_means(baseline.info, shown)}; baseline, {count(heads, 'head')}{texts}"


def _means(info: Mapping[str, Any], shown: PlasticityColumns) -> str:
    """The means in one line; ± is half of a 95 % interval."""
    words = {shown.level: ""}
    if shown is AT_ONE_POSITION:
        words |= {ALIGNED_DROP: ", drop ", PHASE: ", rotary phase "}
    parts = ""
    for column, word in words.items():
        mean = recorded_mean(info.get("means") or {}, column)
        if mean.heads or not word:
            parts += word + METRICS[shown.level].show_half(mean.value, mean_half_width(mean))
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
