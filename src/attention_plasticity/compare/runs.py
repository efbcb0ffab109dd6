"""Comparison of runs: one row per run, checks that they are comparable, benchmark scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import pearsonr, spearmanr

from attention_plasticity.columns import MEAN_COLUMNS
from attention_plasticity.run.head_means import MeanEstimate
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import groups_of, mean_over_heads
from qk_toolkit.errors import ConfigError

COLUMNS = MEAN_COLUMNS
_METHOD = ("query_model", "pair_sampling", "single_example")
_METHOD_OF_LOCAL_PAIRS = ("max_rel_dist",)


def compare_runs(runs: Sequence[FinishedRun], labels: Sequence[str]) -> pd.DataFrame:
    """One row per run: heads, context, the means over heads of `COLUMNS` and their errors.

    Means are corrected for bias if the bias is known (`corrected`). A column that is missing in the
    table of a run is NaN.
    """
    rows = []
    for label, run in zip(labels, runs, strict=True):
        metrics = run.head_metrics
        means = {name: mean_over_heads(run, name) for name in COLUMNS if name in metrics}
        row: dict[str, Any] = {"run": label, "heads": len(metrics), "context": _context(run)}
        row |= {name: mean.value for name, mean in means.items()}
        row |= {f"{name}_se": mean.standard_error for name, mean in means.items()}
        row |= {"n_text_groups": groups_of(run), "corrected": _corrected(means.values())}
        rows.append(row)
    errors = [f"{name}_se" for name in COLUMNS]
    names = ["run", "heads", "context", *COLUMNS, *errors, "n_text_groups", "corrected"]
    return pd.DataFrame(rows, columns=names)


def _corrected(means: Iterable[MeanEstimate]) -> bool:
    return all(mean.corrected for mean in means if mean.heads)


def _context(run: FinishedRun) -> float:
    """Number of tokens up to the last captured query."""
    if "q_position_max" not in run.head_metrics:
        return math.nan
    return float(run.head_metrics["q_position_max"].max()) + 1.0


def comparison_obstacles(runs: Sequence[FinishedRun], labels: Sequence[str]) -> list[str]:
    """Reasons why the runs cannot be compared; empty if they can."""
    found = []
    for name in COLUMNS:
        missing = [
            label for label, run in zip(labels, runs, strict=True) if name not in run.head_metrics
        ]
        if missing:
            found.append(f"{', '.join(missing)}: the table of heads has no column {name}")
            break
    settings = [run.info.get("config") or {} for run in runs]
    names: tuple[str, ...] = _METHOD
    if any(config.get("pair_sampling") == "local" for config in settings):
        names += _METHOD_OF_LOCAL_PAIRS
    for name in names:
        values = {label: config.get(name) for label, config in zip(labels, settings, strict=True)}
        known = {label: value for label, value in values.items() if value is not None}
        if len(set(known.values())) > 1:
            listed = ", ".join(f"{label} {value}" for label, value in known.items())
            found.append(f"{name} differs: {listed}")
    return found


def comparison_notes(runs: Sequence[FinishedRun], labels: Sequence[str]) -> list[str]:
    """Notes about differences between runs that can be compared."""
    found = []
    contexts = [context for run in runs if not math.isnan(context := _context(run))]
    if contexts and max(contexts) > 1.25 * min(contexts):
        span = f"{min(contexts):,.0f} to {max(contexts):,.0f} tokens"
        found.append(
            f"the runs have different contexts ({span}): a fifth is a different number of tokens "
            "in each run"
        )
    for label, run in zip(labels, runs, strict=True):
        heads = run.info.get("heads") or {}
        if heads.get("not_captured"):
            found.append(f"{label}: {heads['not_captured']:,} heads were not captured")
        if heads.get("failed"):
            found.append(f"{label}: {heads['failed']:,} heads failed")
        found += [f"{label}: {warning}" for warning in run.warnings]
    plain = [
        label
        for label, corrected in zip(labels, compare_runs(runs, labels)["corrected"], strict=True)
        if not corrected
    ]
    if 0 < len(plain) < len(runs):
        found.append(f"{', '.join(plain)}: the bias is not known, so the means are not corrected")
    unknown = [label for label, run in zip(labels, runs, strict=True) if not run.info]
    if unknown:
        found.append(f"{', '.join(unknown)}: no run.json, so the settings are not known")
    return found


@dataclass(frozen=True)
class Correlation:
    """Correlation of the drop of plasticity with a score, over models."""

    score: str
    models: int
    pearson: float
    spearman: float


def read_scores(path: Path, labels: Sequence[str]) -> pd.DataFrame:
    """Scores of the runs, in the order of the runs: `model`, then one column per benchmark."""
    try:
        table = pd.read_csv(path)
    except FileNotFoundError as error:
        raise ConfigError(f"scores: {path}: does not exist") from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"scores: {path}: cannot be read as CSV: {reason}") from error
    require_columns(table, ["model"], f"scores: {path}")
    scores = [name for name in table.columns if name != "model"]
    if not scores:
        raise ConfigError(f"scores: {path}: has no column of scores; add one column per benchmark")
    table["model"] = table["model"].astype(str)
    for name in scores:
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise ConfigError(f"scores: {path}: {name}: expected numbers")
    repeated = table["model"][table["model"].duplicated()]
    if len(repeated):
        raise ConfigError(f"scores: {path}: {repeated.iloc[0]!r} has two rows; keep one")
    missing = [label for label in labels if label not in set(table["model"])]
    if missing:
        raise ConfigError(
            f"scores: {path}: has no row for {', '.join(missing)} "
            f"(models: {', '.join(table['model'])}); set the names of the runs with --labels"
        )
    return table.set_index("model").loc[list(labels)].reset_index()


def correlations(compared: pd.DataFrame, scores: pd.DataFrame) -> list[Correlation]:
    """Pearson and Spearman correlation per benchmark, over models with both numbers."""
    found = []
    drop = compared["ap_drop"].to_numpy(dtype=np.float64)
    for name in scores.columns[1:]:
        score = scores[name].to_numpy(dtype=np.float64)
        known = ~(np.isnan(drop) | np.isnan(score))
        found.append(_correlation(str(name), drop[known], score[known]))
    return found


def _correlation(name: str, drop: Any, score: Any) -> Correlation:
    if len(drop) < 3 or np.ptp(drop) == 0 or np.ptp(score) == 0:
        return Correlation(name, len(drop), math.nan, math.nan)
    pearson, spearman = pearsonr(drop, score), spearmanr(drop, score)
    return Correlation(name, len(drop), float(pearson.statistic), float(spearman.statistic))
