"""The files of the verb `fidelity` in the folder of a run: a table, and means over key heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from attention_plasticity.run.outputs import FIDELITY_INFO
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_json

QUANTITIES = {"spearman": 0.0, "kept_50": 0.5, "kept_25": 0.25, "kept_10": 0.1}
"""Columns of the table, with the value of a random order of keys."""
LIMITS = ("best_static", "best_per_query")
"""Rows that know the queries of the text."""
Score = tuple[str, int]
"""Name of a score, and 1 if it is multiplied by the length of the value."""


class Mean(NamedTuple):
    """A mean over key heads."""

    value: float
    standard_error: float  # over texts; NaN if it is not known
    groups: float  # of texts behind it


Means = Mapping[Score, Mapping[str, Mean]]
"""By score, then by column of the table."""


def read_facts(folder: Path) -> dict[str, Any] | None:
    """The content of fidelity.json; None if the folder has none."""
    try:
        facts: Any = read_json(folder / FIDELITY_INFO)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from error
    if not isinstance(facts, dict):
        raise _damaged(folder, "not a mapping")
    return facts


def recorded_means(folder: Path) -> Means | None:
    """The means of fidelity.json; None if the folder has none."""
    facts = read_facts(folder)
    if facts is None:
        return None
    found: dict[Score, dict[str, Mean]] = {}
    try:
        for record in facts["means"]:
            score = (str(record["score"]), int(record["value_norm"]))
            found[score] = {name: _mean(record[name]) for name in QUANTITIES}
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder, f"means: {error!r}") from error
    return found


def _damaged(folder: Path, reason: object) -> ConfigError:
    return ConfigError(
        f"{folder / FIDELITY_INFO}: {reason}. The file was edited or damaged; run fidelity again"
    )


def table_means(table: pd.DataFrame) -> Means:
    """Means of a part of the table, without errors: influences of texts are not in it."""
    kinds = table[["score", "value_norm"]].drop_duplicates().itertuples(index=False, name=None)
    found: dict[Score, dict[str, Mean]] = {}
    for score, kind in kinds:
        own = table[(table["score"] == score) & (table["value_norm"] == kind)]
        found[str(score), int(kind)] = {
            name: Mean(float(own[name].mean()), math.nan, math.nan) for name in QUANTITIES
        }
    return found


def _mean(record: Mapping[str, Any]) -> Mean:
    numbers = (record[name] for name in ("value", "standard_error", "groups"))
    return Mean(*(math.nan if number is None else float(number) for number in numbers))
