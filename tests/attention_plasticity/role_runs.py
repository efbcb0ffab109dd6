"""Adds roles, words and rotary bands to the tables of a run: known values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attention_plasticity.metrics import KERNEL, ROLES, TableKind
from attention_plasticity.tables.head_roles import SCORES
from run_tables import add_table

GROUPS, REPEATED_GROUPS = 12, 8
ROLE_OF_LAYER = {0: "previous", 1: "induction", 2: "far", 3: "sink", 4: "mixed"}
UNSURE_HEAD = (0, 3)
"""A head that is likely a head of the previous token, but unsure."""
WORDS = (  # kind, distance, weight, token of the query, token of the key
    ("strongest", 1, 0.875, " the", "\n"),
    ("strongest", 40, 0.75, "nan", "whale"),
    ("typical", 7, 0.125, "\tsea", ""),
)
BANDS = 4


def roles_table(heads: pd.DataFrame) -> pd.DataFrame:
    """The role of a head is that of its layer. Scores differ a little between heads."""
    table = heads[["layer", "q_head", "k_head"]].reset_index(drop=True)
    likely = table["layer"].map(ROLE_OF_LAYER).fillna("mixed")
    unsure = (table["layer"] == UNSURE_HEAD[0]) & (table["q_head"] == UNSURE_HEAD[1])
    table["role"], table["likely_role"] = likely.mask(unsure, "unsure"), likely
    table["n_queries"], table["n_groups"] = 300, GROUPS
    for place, metric in enumerate(SCORES):
        table[metric.column] = 0.01 * (place + 1) + 0.001 * table["q_head"]
        table[f"{metric.column}_se"] = 0.002
    table.loc[unsure, "previous_mass"] = 0.401  # the threshold is 0.4
    table["repeated_groups"] = REPEATED_GROUPS
    return table[list(ROLES.names)]


def words_table(heads: pd.DataFrame) -> pd.DataFrame:
    """The same words at every head. The second one is on the first token."""
    columns = ["kind", "distance", "weight", "query_token", "key_token"]
    rows = [
        {**dict(zip(columns, words, strict=True)), "layer": layer, "q_head": head, "k_head": 0}
        for layer, head in heads[["layer", "q_head"]].to_numpy().tolist()
        for words in WORDS
    ]
    table = pd.DataFrame(rows).assign(example_id=0, q_position=100)
    table.loc[table["distance"] == 40, "q_position"] = 40
    return table.assign(k_position=table["q_position"] - table["distance"])


def bands_table(heads: pd.DataFrame) -> pd.DataFrame:
    """Four bands per head. The last one does not turn."""
    rows = [
        {"layer": layer, "q_head": head, "k_head": 0, "band": band, "wavelength": 10.0**band}
        for layer, head in heads[["layer", "q_head"]].to_numpy().tolist()
        for band in range(BANDS)
    ]
    table = pd.DataFrame(rows)
    table.loc[table["band"] == BANDS - 1, "wavelength"] = np.nan
    size = 2.0 + table["band"] + 0.1 * table["q_head"]
    shares = {"variance_share": 0.25 - 0.1 * table["band"], "variance_share_se": 0.01}
    shares |= {"q_concentration": 0.1 * table["band"], "q_concentration_se": 0.02}
    return table.assign(norm_product=size, norm_product_se=0.5, n_groups=12, **shares)


def kernel_table(heads: pd.DataFrame) -> pd.DataFrame:
    """Three distances per head, the last with few pairs; the kernel is 2 below the logit."""
    rows = [
        {"layer": layer, "q_head": head, "k_head": 0, "first_distance": distance, "n_pairs": pairs}
        for layer, head in heads[["layer", "q_head"]].to_numpy().tolist()
        for distance, pairs in ((1, 70), (10, 64), (100, 63))
    ]
    table = pd.DataFrame(rows)
    logit = 3.0 - np.log10(table["first_distance"])
    table["last_distance"] = table["distance"] = table["first_distance"]
    table = table.assign(mean_logit=logit, mean_logit_se=0.2, kernel=logit - 2.0, n_groups=GROUPS)
    return table[list(KERNEL.names)]


def add_roles(
    folder: Path,
    *,
    words: bool = True,
    bands: bool = False,
    scores: Mapping[str, Any] | None = None,
    tokens: Mapping[str, str] | None = None,
    capture: Mapping[str, Any] | None = None,
) -> Path:
    """Write head_roles.csv, head_words.csv and head_bands.csv, and name them in run.json.

    `scores` are values of columns of the table of roles, and `tokens` replace tokens of `WORDS`.
    """
    heads = pd.read_csv(folder / "head_metrics.csv")
    tables: dict[TableKind, pd.DataFrame] = {"roles": roles_table(heads).assign(**(scores or {}))}
    if words:
        tables["words"] = words_table(heads).replace(dict(tokens or {}))
    if bands:
        tables["bands"] = bands_table(heads)
        tables["kernel"] = kernel_table(heads)
    for kind, table in tables.items():
        add_table(folder, kind, table)
    info = json.loads((folder / "run.json").read_text())
    if capture is not None:
        info["input"]["dump"]["capture"] = {"capture": dict(capture)}
    (folder / "run.json").write_text(json.dumps(info))
    return folder
