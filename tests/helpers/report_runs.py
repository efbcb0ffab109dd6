"""Small runs written as tables, for the page: quick to make, every value known."""

import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from attention_plasticity.metrics import (
    BIN_PLASTICITY,
    BIN_QUANTITY,
    BUCKET_PLASTICITY,
    COMPONENT_WEIGHTS,
    GROUP_COLUMNS,
    HEAD_NUMBERS,
    INFLUENCES,
    NEAR_BIN_QUANTITY,
    PHASE,
    POOLED,
    POOLED_BIN_QUANTITY,
    UNROTATED,
)
from attention_plasticity.tables.baselines import (
    BASELINES,
    RANDOM,
    baseline_folder,
    baseline_name,
    record_capture,
)
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION

LAYERS, HEADS, BUCKETS, WIDTH = 5, 6, 7, 12
BINS, BIN_SIZE = 14, 64
MISSING = (2, 3)  # a head that was not captured
TEXT_GROUPS = 12
SPOKEN = "owner/model-one"
OWN_COLUMNS = HEAD_NUMBERS[HEAD_NUMBERS.index("n_text_groups") :]
"""Columns that need known texts, rotary records or attention."""


REASON = "no bin with key pairs is in <this> fifth"
_NO_FIRST_FIFTH = {
    "table": "head_metrics",
    "columns": ["ap_aligned_first20"],
    "reason": REASON,
    "heads": 1,
    "where": {"0": "4"},
}


def write_run(folder, seed=0, model=SPOKEN, warnings=(), errors=False, position=False, **dump):
    """A run of `LAYERS` × `HEADS` heads less one, with a NaN here and there.

    Without `errors` and `position`, the columns from `n_text_groups` on are NaN and there is no
    table of influences. With `errors`, the columns before RoPE are known, with errors. With
    `position`, plasticity at one position is known too. The files of a run are made once.
    """
    facts = json.dumps([model, [*warnings], dump])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _files(LAYERS, HEADS, seed, errors, position, facts).items():
        (folder / name).write_bytes(content)
    return folder


@cache
def _files(layers, heads, seed, errors, position, facts):
    """The files of a run by their names; tests change the numbers of layers and heads."""
    model, warnings, dump = json.loads(facts)
    with tempfile.TemporaryDirectory() as folder:
        _write_files(Path(folder), seed, model, warnings, errors, position, dump)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _write_files(folder, seed, model, warnings, errors, position, dump):
    rng = np.random.default_rng(seed)
    grid = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    heads = np.array([head for head in grid if head != MISSING])
    ids = {"layer": heads[:, 0], "q_head": heads[:, 1], "k_head": heads[:, 1] // 3}
    metrics = pd.DataFrame({name: rng.random(len(heads)) for name in HEAD_NUMBERS}).copy()
    metrics = metrics.assign(
        **ids, n_q_tokens=300 + heads[:, 1], n_k_tokens=300, d_model=WIDTH, q_position_max=895
    )
    windowed = heads[:, 0] == 1
    metrics["sliding_window"] = np.where(windowed, 256.0, np.nan)
    metrics["layer_type"] = np.where(windowed, "sliding_attention", "full_attention")
    metrics[list(OWN_COLUMNS)] = np.nan
    cells, weights = _cells(rng, heads), _weights(rng, heads)
    records = [{"kind": "few_queries", "text": text} for text in warnings]
    info = {**_info(model, len(heads), dump), "warnings": records, "missing": [_NO_FIRST_FIFTH]}
    if errors or position:
        own = np.random.default_rng([seed, 1])
        _add_values(own, metrics, position)
        influences = _influences(rng, metrics)
        _add_errors(metrics, influences)
        if position:
            bins = _bins(np.random.default_rng([seed, 2]), heads)
            influences = pd.concat([influences, _bin_influences(bins)], ignore_index=True)
            bins.to_csv(folder / "head_bin_plasticity.csv", index=False, na_rep="nan")
            info["tables"]["bins"] = "head_bin_plasticity.csv"
            info |= {"bin_size": BIN_SIZE, "longest_text": 896}
        influences.to_csv(folder / "head_influences.csv", index=False, na_rep="nan")
        info["tables"]["influences"] = "head_influences.csv"
    metrics.to_csv(folder / "head_metrics.csv", index=False)
    cells.to_csv(folder / "head_bucket_plasticity.csv", index=False)
    weights.to_csv(folder / "head_component_weights.csv", index=False)
    (folder / "run.json").write_text(json.dumps(info))


def _cells(rng, heads):
    pairs = [(q, k) for q in range(1, BUCKETS) for k in range(q)]
    rows = [(*head, head[1] // 3, q, k) for head in heads.tolist() for q, k in pairs]
    table = pd.DataFrame(rows, columns=list(BUCKET_PLASTICITY.names[:5]))
    table["plasticity"] = rng.random(len(table))
    table["n_pairs"] = rng.integers(1, 256, len(table))
    table["q_position"] = table["q_bucket"] * 128 + 63.25
    table["k_position"] = table["k_bucket"] * 128 + 64.125
    table["n_queries"] = 40
    table["n_texts"] = 6
    table.loc[3, ["plasticity", "n_pairs"]] = np.nan, 0
    return table.astype({"n_pairs": np.int64})


NEAR = 2  # distance in bins that queries of the first fifth have
POSITION_COLUMNS = (*AT_ONE_POSITION.all, POOLED, PHASE)


def _add_values(rng, metrics, position):
    """Fill the columns before RoPE, and those of plasticity at one position."""
    for number, name in enumerate(UNROTATED):
        metrics[name] = 0.004 + 0.0001 * metrics["layer"] + 0.1 * number
    if not position:
        return
    for name in POSITION_COLUMNS:
        metrics[name] = rng.random(len(metrics))
    for name in ("ap_aligned_drop", *AT_ONE_POSITION.parts):
        metrics[name] -= 0.5
    metrics[PHASE] = metrics[POOLED] - metrics["ap_aligned"]
    metrics.loc[4, "ap_aligned_first20"] = np.nan


def _bins(rng, heads):
    pairs = [(q, k) for q in range(1, BINS) for k in range(q)]
    rows = [(*head, head[1] // 3, q, k) for head in heads.tolist() for q, k in pairs]
    table = pd.DataFrame(rows, columns=list(BIN_PLASTICITY.names[:5]))
    for name in ("plasticity", "pooled"):
        table[name] = rng.random(len(table))
        table[f"{name}_se"] = 0.05 * rng.random(len(table))
    table["n_pairs"] = rng.integers(1, 256, len(table))
    table["n_queries"], table["n_texts"], table["q_weight"] = 40, 6, 640.0
    for kind in ("q", "k"):
        start = table[f"{kind}_bin"] * BIN_SIZE
        table[f"{kind}_start"], table[f"{kind}_end"] = start, start + BIN_SIZE - 1
        table[f"{kind}_position"] = start + 31.25
    return table[list(BIN_PLASTICITY.names)]


def _bin_influences(bins):
    """Influences of the bins of queries: at one position, over the bin, and at equal distances."""
    rng = np.random.default_rng(5)
    parts = []
    for quantity, column in ((BIN_QUANTITY, "plasticity"), (POOLED_BIN_QUANTITY, "pooled")):
        means = bins.groupby(["layer", "q_head", "k_head", "q_bin"], as_index=False)[column].mean()
        names = {column: "value", "q_bin": "bin"}
        parts.append(means.rename(columns=names).assign(quantity=quantity))
    near = bins[(bins["q_bin"] - bins["k_bin"] <= NEAR) & (bins["q_bin"] >= NEAR)]
    means = near.groupby(["layer", "q_head", "k_head", "q_bin"], as_index=False)[
        "plasticity"
    ].mean()
    names = {"plasticity": "value", "q_bin": "bin"}
    parts.append(means.rename(columns=names).assign(quantity=NEAR_BIN_QUANTITY))
    table = pd.concat(parts, ignore_index=True)
    table["n_groups"] = TEXT_GROUPS
    table[list(GROUP_COLUMNS)] = 0.0
    shares = rng.normal(0.0, 0.01, (len(table), TEXT_GROUPS))  # (rows, groups)
    table[list(GROUP_COLUMNS[:TEXT_GROUPS])] = shares
    return table[list(INFLUENCES.names)]


def _influences(rng, metrics):
    """Influences of 12 groups, larger in later layers; other groups have none."""
    names = [name for name in (*UNROTATED, *POSITION_COLUMNS) if metrics[name].notna().any()]
    table = metrics.melt(["layer", "q_head", "k_head"], names, "quantity").assign(bin=np.nan)
    table["n_groups"] = TEXT_GROUPS
    shares = rng.normal(0.0, 0.03, (len(table), TEXT_GROUPS))  # (rows, groups)
    shares *= 0.2 + table["layer"].to_numpy()[:, None]
    table[list(GROUP_COLUMNS[:TEXT_GROUPS])] = shares
    table[list(GROUP_COLUMNS[TEXT_GROUPS:])] = 0.0
    return table[list(INFLUENCES.names)]


def _add_errors(metrics, influences):
    """Fill the columns of errors, in agreement with the influences."""
    for name, rows in influences.groupby("quantity"):
        squares = rows[list(GROUP_COLUMNS)].to_numpy() ** 2
        metrics[f"{name}_se"] = np.sqrt(squares.sum(axis=1))
    metrics["n_text_groups"] = TEXT_GROUPS


def _weights(rng, heads):
    rows = [(*head, head[1] // 3, number) for head in heads.tolist() for number in range(WIDTH)]
    table = pd.DataFrame(rows, columns=list(COMPONENT_WEIGHTS.names[:4]))
    weight = rng.random((len(heads), WIDTH))
    table["weight"] = (weight / weight.sum(axis=1, keepdims=True)).ravel()
    table["r2"] = rng.random(len(table))
    return table


def _info(model, heads, dump):
    geometry = {"bucket_type": "uniform", "min_bucket_size": 128}
    manifest = {"model": model, "revision": "abc123", **geometry, **dump}
    return {
        "attention_plasticity": "0.1.0",
        "config": {"query_model": "positional"},
        "seed": 7,
        "input": {
            "path": "data/dump",
            "hub": {"repo": "owner/data", "revision": "branch", "commit": "c0ffee"},
            "fingerprint": "f1f2f3",
            "dump": manifest,
        },
        "head_layout": {"num_layers": LAYERS, "num_q_heads": HEADS, "num_k_heads": 2},
        "heads": {"analysed": heads, "failed": 1, "not_captured": 1, "not_analysed": 0},
        "failures": [{"layer": 4, "q_head": 9, "k_head": 1, "reason": "too few <queries>"}],
        "tables": {
            "head_metrics": "head_metrics.csv",
            "bucket_plasticity": "head_bucket_plasticity.csv",
            "component_weights": "head_component_weights.csv",
        },
        "finished": "2026-01-02T03:04:05+00:00",
        "seconds": 1.5,
        "versions": {"python": "3.11.7", "numpy": "2.4.6"},
    }


def write_baselines(run, draws=1):
    """Baselines of a run with plasticity at one position, by name."""
    info = json.loads((run / "run.json").read_text())
    record_capture(run, info)
    names = [*BASELINES, *(baseline_name(RANDOM, draw) for draw in range(1, draws))]
    folders = {name: baseline_folder(run, name) for name in names}
    for seed, folder in enumerate(folders.values(), 10):
        write_run(folder, seed=seed, position=True)
        own = json.loads((folder / "run.json").read_text())
        own["input"]["texts"] = {"count": 8, "digest": None}
        (folder / "run.json").write_text(json.dumps(own))
    return folders
