"""The tables of roles in docs/findings-smollm2.md; `make findings` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import bootstrap, rankdata

import attention_plasticity as ap
from attention_plasticity.metrics import HEAD
from attention_plasticity.roles import NAMES, UNSURE
from attention_plasticity.tables.intervals import half_width, mean_of_heads
from findings.tables import NONE, cells, estimate, head_name, markdown
from qk_toolkit.arrays import Array

CORRELATED = {
    "attention on the previous token": "previous_mass",
    "far attention": "far_mass",
    "sink rate": "sink_rate",
    "largest weight": "top_weight",
    "induction score": "repeated_induction",
}
"""What is correlated with RoPE-aligned plasticity."""


def role_tables(run: ap.Run) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of every table."""
    metrics = run.head_metrics.assign(plasticity=cells(run, "ap_aligned"))
    heads = run.table("roles").merge(metrics, on=HEAD, suffixes=("", "_of_metrics")).copy()
    fast = run.table("bands")[run.table("bands")["wavelength"] <= run.info["bin_size"]]
    share = fast.groupby(HEAD)["variance_share"].sum()  # of bands that turn at least once in a bin
    heads["fast"] = share.reindex(pd.MultiIndex.from_frame(heads[HEAD])).to_numpy(np.float64)
    members = {name: heads[heads["role"] == name] for name in (*NAMES, UNSURE)}
    members = {name: own for name, own in members.items() if len(own)}
    yield "roles", _roles(run, members)
    yield "induction-heads", _induction(heads)
    yield "role-correlations", correlations(heads)


def _roles(run: ap.Run, members: Mapping[str, pd.DataFrame]) -> str:
    rows = []
    for name, heads in members.items():
        layers = f"{heads['layer'].min()}–{heads['layer'].max()}"
        means = (mean_of_heads(heads, run.influences, one) for one in ("ap_aligned", "ap_phase"))
        rows.append([name, str(len(heads)), layers, *map(estimate, means)])
    titles = ["role", "heads", "layers", "RoPE-aligned plasticity", "rotary phase"]
    return markdown(titles, rows)


def _interval(head: Mapping[Any, Any], score: str) -> str:
    groups = head["repeated_groups" if score.startswith("repeated_") else "n_groups"]
    half = float(half_width(head[f"{score}_se"], groups))
    return NONE if np.isnan(half) else f"{head[score]:.2f} ± {half:.2f}"


def _induction(heads: pd.DataFrame) -> str:
    """The six heads with the largest induction score, on repeated tokens and on texts."""
    rows = []
    for head in heads.nlargest(6, "repeated_induction").to_dict("records"):
        scores = ("repeated_induction", "induction_mass", "induction_excess", "first_mass")
        rows.append([head_name(head), head["role"], *(_interval(head, name) for name in scores)])
    titles = ["head", "role", "induction score", "after the same token, texts", "over chance"]
    return markdown([*titles, "first token, texts"], rows)


def correlations(heads: pd.DataFrame) -> str:
    """Spearman's correlations over heads, with bootstrap intervals over heads."""
    known = heads.dropna(subset=["ap_aligned", "ap_phase", "fast"])
    pairs = {"rotary phase and variance in fast bands": ("ap_phase", "fast")}
    pairs |= {
        f"RoPE-aligned plasticity and {words}": ("ap_aligned", name)
        for words, name in CORRELATED.items()
    }
    rows = []
    for words, names in pairs.items():
        one, other = (known[name].to_numpy() for name in names)  # (heads,) each
        options: dict[str, Any] = {"n_resamples": 2_000, "method": "percentile"}
        options |= {"paired": True, "vectorized": True, "rng": np.random.default_rng(0)}
        found = bootstrap((one, other), _spearman, **options)
        low, high = found.confidence_interval
        rows.append([words, f"{_spearman(one, other):.2f}", f"{low:.2f} to {high:.2f}"])
    return markdown(["values of heads", "Spearman's correlation", "95 % interval"], rows)


def _spearman(one: Array, other: Array, axis: int = -1) -> Array:
    ranks = [rankdata(values, axis=axis) for values in (one, other)]
    x, y = (rank - rank.mean(axis=axis, keepdims=True) for rank in ranks)
    squares = (x * x).sum(axis=axis) * (y * y).sum(axis=axis)
    return np.asarray((x * y).sum(axis=axis) / np.sqrt(squares))
