"""The files of the verb `fidelity` in the folder of a run: a table, and means over key heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from attention_plasticity.tables.score_names import FIDELITY_FACTS, QUANTITIES
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import read_json

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
        facts: dict[str, Any] = read_json(folder / FIDELITY_FACTS)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / FIDELITY_FACTS}: cannot be read: {error}") from error
    return facts


def recorded_means(facts: Mapping[str, Any]) -> Means:
    """The means of fidelity.json."""
    found: dict[Score, dict[str, Mean]] = {}
    for record in facts["means"]:
        score = (str(record["score"]), int(record["value_norm"]))
        found[score] = {name: _mean(record[name]) for name in QUANTITIES}
    return found


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
