"""Adds attention to the tables of a run: known values, as a dump with attention columns gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from attention_plasticity.estimate.sizes import DISTANCES
from attention_plasticity.metrics import MASS_COLUMNS
from run_tables import add_table

DISTANT, GROUPS = 256, 12
BINS = list(DISTANCES)
MASSES = list(MASS_COLUMNS)
ERRORS = [f"{name}_se" for name in MASSES]


def add_attention(folder: Path, seed: int = 0, errors: bool = True) -> Path:
    """Write head_attention.csv, and the columns of attention in head_metrics.csv."""
    rng = np.random.default_rng(seed)
    metrics = pd.read_csv(folder / "head_metrics.csv").copy()
    cells = pd.read_csv(folder / "head_bucket_plasticity.csv")
    table = attention_table(rng, cells)
    if not errors:
        table[[name for name in table if name.endswith("_se")]] = np.nan
    metrics = with_attention(rng, metrics, table, errors)
    metrics.to_csv(folder / "head_metrics.csv", index=False)
    config = json.loads((folder / "run.json").read_text())["config"]
    return add_table(folder, "attention", table, config=config | {"distant_from": DISTANT})


def attention_table(rng: np.random.Generator, cells: pd.DataFrame) -> pd.DataFrame:
    """One row per head and query bucket. Late layers look further than early ones."""
    columns = ["layer", "q_head", "k_head", "q_bucket", "q_position", "n_queries"]
    table = cells[columns].drop_duplicates().reset_index(drop=True).assign(n_groups=GROUPS)
    for name, size in (("entropy", 4.0), ("sink_mass", 0.6), ("max_logit", 12.0)):
        table[name] = size * rng.random(len(table))
        table[f"{name}_se"] = 0.02 * size * rng.random(len(table))
    depth = (table["layer"] + 1).to_numpy() / (table["layer"].max() + 1)
    decay = -0.5 * np.log2(np.array(BINS) + 1) * (1.5 - depth[:, None])  # (rows, bins)
    weights = np.exp(decay + 0.5 * rng.normal(size=decay.shape))
    weights[np.array(BINS) > table["q_position"].to_numpy()[:, None]] = 0.0
    masses = weights / weights.sum(axis=1, keepdims=True)  # (rows, bins)
    masses *= 1.0 - table[["sink_mass"]].to_numpy()
    last = np.searchsorted(BINS, table["q_position"].to_numpy(), "right") - 1  # bin of the sinks
    masses[np.arange(len(table)), last] += table["sink_mass"]
    table[MASSES] = masses
    table[ERRORS] = 0.05 * masses * (0.5 + rng.random(masses.shape))
    table["n_tokens"] = table["n_queries"] * (2.0 + table["q_bucket"])
    return table


def with_attention(
    rng: np.random.Generator, metrics: pd.DataFrame, table: pd.DataFrame, errors: bool
) -> pd.DataFrame:
    """The table of heads with its columns of attention."""
    heads = ["layer", "q_head"]
    distant = table[[name for name, first in zip(MASSES, BINS, strict=True) if first >= DISTANT]]
    values = table[["entropy", "sink_mass", "max_logit"]].assign(distant_mass=distant.sum(axis=1))
    late = table["q_position"] >= DISTANT + 3
    values["far_mass"] = ((values["distant_mass"] - values["sink_mass"]) * late).clip(0.0)
    share = table["n_tokens"] / table.groupby(heads)["n_tokens"].transform("sum")
    means = values.mul(share, axis=0).groupby([table[name] for name in heads]).sum()
    found = means.loc[pd.MultiIndex.from_frame(metrics[heads])].reset_index(drop=True)
    overall = metrics["ap_overall"]
    new = {f"attn_{name}": found[name] for name in found}
    new |= {f"attn_{name}_se": 0.03 * found[name] * (errors or np.nan) for name in found}
    noise = 0.1 * rng.normal(size=len(metrics))
    new["ap_attended"] = (0.8 * overall + noise).clip(0.02, 0.98)
    new["ap_attended_se"] = pd.Series(0.02 * (errors or np.nan), metrics.index)
    others = metrics.drop(columns=[name for name in new if name in metrics])
    return pd.concat([others, pd.DataFrame(new)], axis=1)
