"""Adds tables to runs, with known values: attention, drift, key heads, roles, words and bands."""

import json

import numpy as np
import pandas as pd

from attention_plasticity.estimate.sizes import DISTANCES
from attention_plasticity.metrics import DRIFT, IDS, KERNEL, KEY_HEADS, MASS_COLUMNS, ROLES
from attention_plasticity.tables.head_roles import SCORES
from helpers.run_tables import add_table

DISTANT = 256
GROUPS, REPEATED_GROUPS = 12, 8
BINS = list(DISTANCES)
MASSES = list(MASS_COLUMNS)
ERRORS = [f"{name}_se" for name in MASSES]


def add_attention(folder, seed=0, errors=True):
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


def attention_table(rng, cells):
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


def with_attention(rng, metrics, table, errors):
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


def add_drift(folder):
    """Write head_drift.csv, and name it in run.json."""
    drift = pd.read_csv(folder / "head_metrics.csv")[list(IDS)]
    for place, metric in enumerate(DRIFT.columns[len(IDS) :]):
        value = 0.01 * (place + 1) + 0.02 * drift["layer"] + 0.1 * drift["q_head"]
        drift[metric.column] = 0.004 if metric.error_of else value
    drift["n_groups"] = 12
    return add_table(folder, "drift", drift)


MEAN_ERROR = 0.0125
"""Standard error of every mean over key heads."""


def add_key_heads(folder, values=None):
    """Write key_head_metrics.csv, and name it in run.json. `values` replace columns."""
    heads = pd.read_csv(folder / "head_metrics.csv")
    table = heads.groupby(["layer", "k_head"]).size().rename("n_q_heads").reset_index()
    table["layer_type"], table["sliding_window"] = "full_attention", float("nan")
    table["n_pairs"] = 1000
    table["n_queries"], table["n_groups"] = 90.5, GROUPS
    for place, metric in enumerate(one for one in KEY_HEADS.columns if one.error):
        value = 0.02 * (place + 1) + 0.01 * table["layer"] + 0.001 * table["k_head"]
        table[metric.column], table[f"{metric.column}_se"] = value, 0.004
    table = table.assign(**(values or {}))[list(KEY_HEADS.names)]
    means = {
        metric.column: {
            "value": table[metric.column].mean(),
            "standard_error": MEAN_ERROR,
            "heads": len(table),
            "groups": GROUPS,
        }
        for metric in KEY_HEADS.columns
        if metric.error
    }
    return add_table(folder, "key_heads", table, key_head_means=means)


def name_layout(folder, layers, q_heads, k_heads):
    """Write the numbers of heads of the model into run.json."""
    info = json.loads((folder / "run.json").read_text())
    sizes = {"num_layers": layers, "num_q_heads": q_heads, "num_k_heads": k_heads}
    (folder / "run.json").write_text(json.dumps(info | {"head_layout": sizes}))
    return folder


ROLE_OF_LAYER = {0: "previous", 1: "induction", 2: "far", 3: "sink", 4: "mixed"}
UNSURE_HEAD = (0, 3)
"""A head that is likely a head of the previous token, but unsure."""
WORDS = (  # kind, distance, weight, token of the query, token of the key
    ("strongest", 1, 0.875, " the", "\n"),
    ("strongest", 40, 0.75, "nan", "whale"),
    ("typical", 7, 0.125, "\tsea", ""),
)
BANDS = 4


def roles_table(heads):
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


def words_table(heads):
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


def bands_table(heads):
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


def kernel_table(heads):
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


def add_roles(folder, *, words=True, bands=False, scores=None, tokens=None, capture=None):
    """Write head_roles.csv, head_words.csv and head_bands.csv, and name them in run.json.

    `scores` are values of columns of the table of roles, and `tokens` replace tokens of `WORDS`.
    """
    heads = pd.read_csv(folder / "head_metrics.csv")
    tables = {"roles": roles_table(heads).assign(**(scores or {}))}
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
