"""Tables of runs that nobody computed: known values, written where a run would put them."""

import csv
import json

import numpy as np
import pandas as pd

from attention_plasticity.metrics import (
    ALIGNED,
    ALIGNED_DROP,
    ALIGNED_FIRST,
    ALIGNED_LAST,
    BIN_QUANTITY,
    DISTANCE_QUANTITY,
    DROP_DISTANCE,
    DROP_POSITION,
    GROUP_COLUMNS,
    HEAD_METRICS,
    NEAR_BIN_QUANTITY,
    PHASE,
    POOLED,
    POOLED_BIN_QUANTITY,
    TABLES,
)

ALIGNED_COLUMNS = (
    *(ALIGNED, ALIGNED_FIRST, ALIGNED_LAST, ALIGNED_DROP, DROP_POSITION, DROP_DISTANCE),
    *(POOLED, PHASE),
)
IDS = ["layer", "q_head", "k_head"]
LAYERS, HEADS, BUCKETS, SIZE, WIDTH = 3, 4, 6, 128, 8


def cells_table(buckets=BUCKETS):
    """Cells whose plasticity falls with the query bucket, a little differently in each head."""
    rows = [
        {
            "layer": layer,
            "q_head": head,
            "k_head": head // 2,
            "q_bucket": q,
            "k_bucket": k,
            "plasticity": round(0.95 - 0.1 * q - 0.01 * k + 0.02 * layer - 0.003 * head, 6),
            "n_pairs": 100 + k,
            "q_position": (q + 0.5) * SIZE,
            "k_position": (k + 0.5) * SIZE,
            "n_queries": 40 + q,
        }
        for layer in range(LAYERS)
        for head in range(HEADS)
        for q in range(1, buckets)
        for k in range(q)
    ]
    return pd.DataFrame(rows)


def metrics_table(shift=0.0):
    """One row per head, without errors; position explains more in later layers."""
    rows = [
        {
            "layer": layer,
            "q_head": head,
            "k_head": head // 2,
            "n_q_tokens": 200,
            "ap_overall": 0.7 + 0.02 * layer - 0.01 * head + shift,
            "q_R2_pos": 0.08 * layer,
            "q_R2_total": 0.1 * layer + 0.01 * head,
            "q_position_max": BUCKETS * SIZE - 1,
            "sliding_window": np.nan,
        }
        for layer in range(LAYERS)
        for head in range(HEADS)
    ]
    return pd.DataFrame(rows)


def components_table():
    """Weights that a head gives mostly to one dimension; they do not sum to 1."""
    rows = [
        {"layer": layer, "q_head": head, "k_head": head // 2, "component": d, "weight": weight}
        for layer in range(LAYERS)
        for head in range(HEADS)
        for d in range(WIDTH)
        for weight in [(3.0 if d == head else 1.0) * (layer + 1)]
    ]
    return pd.DataFrame(rows).assign(r2=lambda table: table["weight"] / 10)


def write_run(folder, *, model="owner/Tiny-1B", shift=0.0, **config):
    """A run's folder with three tables and run.json, without plasticity at one position."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "head_metrics": ("head_metrics.csv", metrics_table(shift)),
        "bucket_plasticity": ("head_bucket_plasticity.csv", cells_table()),
        "component_weights": ("head_component_weights.csv", components_table()),
    }
    for name, table in tables.values():
        table.to_csv(folder / name, index=False, na_rep="nan")
    settings = {"query_model": "positional", "pair_sampling": "bucket", "single_example": False}
    dump = {"model": model, "bucket_type": "uniform", "min_bucket_size": SIZE, "revision": "abc"}
    run = {
        "attention_plasticity": "0.1.0",
        "config": settings | config,
        "seed": 0,
        "input": {"path": "dump", "hub": None, "fingerprint": "f00", "dump": dump},
        "heads": {"analysed": LAYERS * HEADS, "failed": 0, "not_captured": 0, "not_analysed": 0},
        "failures": [],
        "tables": {kind: name for kind, (name, _) in tables.items()},
        "finished": "2026-01-01T00:00:00+00:00",
        "versions": {"python": "3.11"},
    }
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def add_table(folder, kind, table, **entries):
    """Write a table of a run, and name it in run.json, where `entries` are added."""
    name = TABLES[kind].file
    quoting = csv.QUOTE_NONNUMERIC if kind == "words" else csv.QUOTE_MINIMAL
    table.to_csv(folder / name, index=False, na_rep="nan", quoting=quoting)
    info = json.loads((folder / "run.json").read_text())
    info["tables"][kind] = name
    (folder / "run.json").write_text(json.dumps(info | entries))
    return folder


def add_errors(folder, groups=8):
    """Give every column of heads that can have one a standard error, and bins influences too."""
    path = folder / "head_metrics.csv"
    metrics = pd.read_csv(path).assign(n_text_groups=groups)
    rng = np.random.default_rng(0)
    tables = []
    for name in HEAD_METRICS.with_error:
        if name in metrics:
            rows = metrics[IDS].assign(quantity=name, bin=np.nan, value=metrics[name])
            tables.append(_with_influences(rng, rows, groups))
            metrics[f"{name}_se"] = np.linalg.norm(tables[-1][list(GROUP_COLUMNS)], axis=1)
    metrics.to_csv(path, index=False, na_rep="nan")
    info = json.loads((folder / "run.json").read_text())
    if "bins" in info["tables"]:
        bins = pd.read_csv(folder / info["tables"]["bins"])
        tables += [_with_influences(rng, rows, groups) for rows in _bin_rows(bins)]
        names = {"distance_bin": "bin", "plasticity": "value"}
        distances = distances_table(bins).rename(columns=names)[[*IDS, "bin", "value"]]
        rows = distances.assign(quantity=DISTANCE_QUANTITY)
        tables.append(_with_influences(np.random.default_rng(1), rows, groups))
    return add_table(folder, "influences", pd.concat(tables))


def _bin_rows(bins):
    """Rows of influences of the bins of queries, at one position and over the bin."""
    by_bin = bins.groupby([*IDS, "q_bin"], as_index=False)
    near = bins[bins["q_bin"] - bins["k_bin"] == 1].assign(quantity=NEAR_BIN_QUANTITY)
    columns = {"q_bin": "bin", "plasticity": "value"}
    found = []
    for quantity, column in ((BIN_QUANTITY, "plasticity"), (POOLED_BIN_QUANTITY, "pooled")):
        names = {"q_bin": "bin", column: "value"}
        found.append(by_bin[column].mean().rename(columns=names).assign(quantity=quantity))
    return [*found, near.rename(columns=columns)[[*IDS, "bin", "value", "quantity"]]]


def _with_influences(rng, rows, groups):
    shares = np.zeros((len(rows), len(GROUP_COLUMNS)))
    shares[:, :groups] = rng.normal(0.0, 0.01, (len(rows), groups))
    columns = pd.DataFrame(shares, columns=list(GROUP_COLUMNS), index=rows.index)
    return rows.assign(n_groups=groups).join(columns)


def add_windows(folder):
    """Give layers 0 and 2 a sliding window of one bucket, and fewer texts to late buckets."""
    metrics = pd.read_csv(folder / "head_metrics.csv")
    cells = pd.read_csv(folder / "head_bucket_plasticity.csv")
    window = metrics["layer"] != 1
    metrics["sliding_window"] = np.where(window, SIZE, np.nan)
    metrics["layer_type"] = np.where(window, "sliding_attention", "full_attention")
    metrics.to_csv(folder / "head_metrics.csv", index=False, na_rep="nan")
    near = (cells["layer"] == 1) | (cells["k_bucket"] == cells["q_bucket"] - 1)
    cells[near].assign(n_texts=10 - cells["q_bucket"]).to_csv(
        folder / "head_bucket_plasticity.csv", index=False, na_rep="nan"
    )
    return folder


def aligned_metrics(metrics):
    """The table of heads with plasticity at one position: another order of heads than buckets.

    The phase grows with the number of the head. Errors are 0.01.
    """
    phase = 0.05 + 0.1 * metrics["q_head"]
    level = metrics["ap_overall"] - 0.1 - phase
    new = {ALIGNED: level, ALIGNED_FIRST: level + 0.2, ALIGNED_LAST: level - 0.2}
    new |= {ALIGNED_DROP: new[ALIGNED_FIRST] - new[ALIGNED_LAST]}
    new |= {DROP_POSITION: 0.1 * (metrics["q_head"] - 1.0)}
    new |= {DROP_DISTANCE: new[ALIGNED_DROP] - new[DROP_POSITION]}
    new |= {POOLED: level + phase, PHASE: phase}
    errors = {f"{name}_se": 0.01 for name in ALIGNED_COLUMNS}
    return metrics.assign(**new, **errors).assign(n_text_groups=8)


def bins_table():
    """Bins that are twice as wide as the buckets."""
    cells = cells_table(buckets=BUCKETS // 2 + 1).drop(columns=["q_position", "k_position"])
    table = cells.rename(columns={"q_bucket": "q_bin", "k_bucket": "k_bin"})
    size = 2 * SIZE
    starts = {f"{side}_start": table[f"{side}_bin"] * size for side in "qk"}
    ends = {f"{side}_end": table[f"{side}_bin"] * size + size - 1 for side in "qk"}
    places = {f"{side}_position": table[f"{side}_bin"] * size + size / 2 for side in "qk"}
    pooled = table["plasticity"]
    return table.assign(
        **starts,
        **ends,
        **places,
        plasticity=pooled - 0.2,
        plasticity_se=0.01,
        pooled=pooled,
        pooled_se=0.01,
        q_weight=float(size),
        n_texts=12,
    )


def add_bins(folder):
    """Give a run plasticity at one position: columns of heads, and the table of bins."""
    path = folder / "head_metrics.csv"
    aligned_metrics(pd.read_csv(path)).to_csv(path, index=False, na_rep="nan")
    bins = bins_table()
    add_table(folder, "distances", distances_table(bins))
    return add_table(folder, "bins", bins, bin_size=2 * SIZE)


def distances_table(bins):
    """The means of the cells of every distance. Queries of the first fifth have only near keys."""
    size = 2 * SIZE
    number = bins["q_bin"] - bins["k_bin"]
    by_distance = bins.assign(distance_bin=number).groupby([*IDS, "distance_bin"], as_index=False)
    table = by_distance[["plasticity", "pooled"]].mean()
    number = table["distance_bin"]
    near = number == 1
    return table.assign(
        first_distance=(number - 1) * size + 1,
        last_distance=(number + 1) * size - 1,
        distance=number * size,
        plasticity_se=0.01,
        pooled_se=0.01,
        first20=table["plasticity"].where(near) - 0.01,
        first20_se=0.01,
        first20_share=near.astype(float),
        last20=table["plasticity"] + 0.01,
        last20_se=0.01,
        last20_share=0.25,
        n_pairs=64,
        n_groups=8,
    )
