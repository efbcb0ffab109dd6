"""Benchmark scores, and their correlation with the drop at one position over runs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from attention_plasticity.comparison.runs import whole_runs
from attention_plasticity.metrics import ALIGNED_DROP
from attention_plasticity.tables.csv_tables import require_columns
from attention_plasticity.tables.intervals import LEVEL
from attention_plasticity.tables.names import clean
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path
from qk_toolkit.formatting import count

FEW_RUNS = 10
_FEWEST = 3  # runs of a correlation
_FEWEST_WITH_INTERVAL = 4
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Correlation:
    """Correlation of the drop of plasticity with a score, over runs, with 95 % intervals."""

    score: str
    models: int  # runs with both numbers
    pearson: float
    spearman: float
    pearson_low: float
    pearson_high: float
    spearman_low: float
    spearman_high: float
    obstacle: str = ""  # why there is no correlation
    quantity: str = ALIGNED_DROP  # the column of the drop

    @property
    def is_known(self) -> bool:
        """Whether there are enough runs with different values."""
        return not math.isnan(self.pearson)


def read_scores(
    scores: pd.DataFrame | str | os.PathLike[str], labels: Sequence[str]
) -> pd.DataFrame:
    """Scores of the runs, in the order of the runs: `model`, then one column per benchmark.

    `scores` is a table or a CSV file.
    """
    if isinstance(scores, pd.DataFrame):
        table, where = scores.rename(columns=str), "scores"
    elif isinstance(scores, str | os.PathLike):
        table, where = _read(scores), f"scores: {user_path(scores)}"
    else:
        kind = type(scores).__name__
        raise ConfigError(f"scores: expected a DataFrame or the path of a CSV file, got a {kind}")
    require_columns(table, ["model"], where)
    names = [name for name in table.columns if name != "model"]
    if not names:
        raise ConfigError(f"{where}: has no column of scores; add one column per benchmark")
    if not table.columns.is_unique:
        twice = table.columns[table.columns.duplicated()][0]
        raise ConfigError(f"{where}: two columns have the name {twice!r}; rename one")
    table["model"] = table["model"].astype(str)
    for name in names:
        table[name] = _numbers(table[name], f"{where}: {name}")
    repeated = table["model"][table["model"].duplicated()]
    if len(repeated):
        raise ConfigError(f"{where}: {repeated.iloc[0]!r} has two rows; keep one")
    missing = [label for label in labels if label not in set(table["model"])]
    if missing:
        raise ConfigError(
            f"{where}: has no row for {', '.join(missing)} "
            f"(models: {', '.join(table['model'])}); give the runs these names as labels"
        )
    return table.set_index("model").loc[list(labels), names].reset_index()


def _read(path: str | os.PathLike[str]) -> pd.DataFrame:
    file = user_path(path)
    try:
        return pd.read_csv(file)
    except FileNotFoundError as error:
        raise ConfigError(f"scores: {file}: does not exist") from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"scores: {file}: cannot be read as CSV: {reason}") from error


def _numbers(column: pd.Series[Any], where: str) -> pd.Series[Any]:
    """A column as floats. Raises a `ConfigError` that quotes the first value without a number."""
    for value in column:
        if not (pd.isna(value) or _is_finite(value)):
            raise ConfigError(
                f"{where}: expected finite numbers, got {str(value)!r}; leave a score that is not "
                "known empty"
            )
    return column.map(lambda value: math.nan if pd.isna(value) else float(value))


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, bool | np.bool_) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def correlations(compared: pd.DataFrame, scores: pd.DataFrame) -> list[Correlation]:
    """Pearson and Spearman correlation per benchmark, over runs with both numbers."""
    found = []
    drop = whole_runs(compared)[ALIGNED_DROP].to_numpy(dtype=np.float64)
    for name in scores.columns[1:]:
        score = scores[name].to_numpy(dtype=np.float64)
        known = ~(np.isnan(drop) | np.isnan(score))
        found.append(_correlation(str(name), drop[known], score[known]))
    return found


def _correlation(name: str, drop: Any, score: Any) -> Correlation:
    runs = len(drop)
    if obstacle := _obstacle(drop, score):
        return Correlation(name, runs, *(math.nan,) * 6, obstacle)
    from scipy.stats import pearsonr, spearmanr  # slow to import

    pearson = float(pearsonr(drop, score).statistic)
    spearman = float(spearmanr(drop, score).statistic)
    return Correlation(
        name,
        runs,
        pearson,
        spearman,
        *fisher_interval(pearson, runs),
        *fisher_interval(spearman, runs, 1.0 + spearman**2 / 2.0),
    )


def _obstacle(drop: Any, score: Any) -> str:
    if len(drop) < _FEWEST:
        return f"{count(len(drop), 'run')}, too few"
    if _are_equal(score):
        return "equal scores"
    return "equal drops" if _are_equal(drop) else ""


def _are_equal(values: Any) -> bool:
    """Whether numbers are equal, up to rounding."""
    return bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())


def fisher_interval(value: float, runs: int, variance: float = 1.0) -> tuple[float, float]:
    """The 95 % interval of a correlation by Fisher's z, with the variance `variance / (n − 3)`.

    For Pearson's correlation the variance is 1; for Spearman's it is 1 + r²/2 (Bonett and Wright,
    2000). NaN with fewer than 4 runs, and for a correlation of exactly 1 or −1.
    """
    if runs < _FEWEST_WITH_INTERVAL or abs(value) > 1.0 - 1e-12:
        return math.nan, math.nan
    reach = float(ndtri(0.5 + LEVEL / 2.0)) * math.sqrt(variance / (runs - 3))
    middle = math.atanh(value)
    return math.tanh(middle - reach), math.tanh(middle + reach)


def correlation_text(found: Correlation) -> str:
    """`drop against ruler: Pearson 0.71 [-0.52, 0.98], Spearman 0.80 [-0.66, 0.99], 5 runs`."""
    text = f"drop against {clean(found.score)}: "
    if not found.is_known:
        return text + f"no correlation ({found.obstacle})"
    pearson, spearman = correlation_values(found)
    return text + f"Pearson {pearson}, Spearman {spearman}, {found.models} runs"


def correlation_values(found: Correlation) -> tuple[str, str]:
    """Pearson's and Spearman's correlation with their intervals: `0.71 [-0.52, 0.98]`."""
    return (
        _with_interval(found.pearson, found.pearson_low, found.pearson_high),
        _with_interval(found.spearman, found.spearman_low, found.spearman_high),
    )


def _with_interval(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "–"
    shown, *ends = (f"{round(number, 2) + 0.0:.2f}" for number in (value, low, high))  # no -0.00
    return shown if math.isnan(low) else f"{shown} [{', '.join(ends)}]"


def evidence(found: Correlation) -> str | None:
    """A sentence that warns of a correlation over few runs; None for ten runs or more."""
    if not found.is_known or found.models >= FEW_RUNS:
        return None
    runs, low, high = found.models, found.pearson_low, found.pearson_high
    if runs < _FEWEST_WITH_INTERVAL:
        return f"{runs} runs; with fewer than 4 runs no interval exists, so no relation is shown."
    if math.isnan(low):
        return f"only {runs} runs; a correlation of exactly {found.pearson:.0f} has no interval."
    interval = f"the 95 % interval of Pearson's correlation is {low:.2f} to {high:.2f}"
    if low <= 0.0 <= high:
        return f"only {runs} runs; {interval} and includes 0, so no relation is shown."
    return f"only {runs} runs; {interval}, so its size is uncertain."
