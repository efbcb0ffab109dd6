"""The tables of docs/findings-roles.md; `make findings` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import attention_plasticity as ap
from attention_plasticity.roles import NAMES, UNSURE
from attention_plasticity.tables.intervals import half_width, mean_of_heads
from findings.smollm2.full_weights import largest_differences
from findings.tables import NONE, cells, estimate, head_name, markdown, rank_correlation
from qk_toolkit.arrays import Array

SMALL = {
    "induction": "repeated_induction",
    "duplicate": "repeated_duplicate",
    "previous": "previous_mass",
    "self": "self_mass",
    "local": "local_mass",
}
"""Roles whose heads are listed, and the score that decides."""
_RESAMPLES = 2_000
_HEAD = ["layer", "q_head"]


def role_tables(
    run: ap.Run, dumps: dict[str, tuple[Path, Path | None]], model: Path
) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of every table.

    `dumps` are the dump of texts and that of repeated tokens, each with the file of its texts.
    """
    metrics = run.head_metrics.assign(plasticity=cells(run, "ap_aligned"))
    heads = run.table("roles").merge(metrics, on=_HEAD, suffixes=("", "_of_metrics"))
    heads["fast"] = _fast_share(run, heads)
    yield "roles", _roles(run, heads)
    yield "role-heads", _role_heads(heads)
    yield "induction-heads", _induction(heads)
    yield "role-bands", _bands(heads)
    yield "role-correlations", _correlations(heads)
    yield "full-weights", _full_weights(dumps, model)


def _fast_share(run: ap.Run, heads: pd.DataFrame) -> Array:
    """(heads,) share of the logit's variance in bands that turn at least once in a bin."""
    fast = run.table("bands")[run.table("bands")["wavelength"] <= run.info["bin_size"]]
    share = fast.groupby(_HEAD)["variance_share"].sum()
    of_heads = share.reindex(pd.MultiIndex.from_frame(heads[_HEAD]))
    return np.asarray(of_heads, np.float64)


def _members(heads: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Every label that a head has, with its heads."""
    for name in (*NAMES, UNSURE):
        members = heads[heads["role"] == name]
        if len(members):
            yield name, members


def _roles(run: ap.Run, heads: pd.DataFrame) -> str:
    rows = []
    for name, members in _members(heads):
        layers = members["layer"]
        means = [
            estimate(mean_of_heads(members, run.influences, column))
            for column in ("ap_aligned", "ap_phase")
        ]
        rows.append([name, str(len(members)), f"{layers.min()}–{layers.max()}", *means])
    titles = ["role", "heads", "layers", "plasticity at one position", "rotary phase"]
    return markdown(titles, rows)


def _role_heads(heads: pd.DataFrame) -> str:
    rows = [
        [head_name(head), name, _interval(head, score), head["plasticity"]]
        for name, score in SMALL.items()
        for head in heads[heads["role"] == name].to_dict("records")
    ]
    return markdown(["head", "role", "its score", "plasticity at one position"], rows)


def _interval(head: Mapping[Any, Any], score: str) -> str:
    groups = head["repeated_groups" if score.startswith("repeated_") else "n_groups"]
    half = float(half_width(head[f"{score}_se"], groups))
    return NONE if np.isnan(half) else f"{head[score]:.2f} ± {half:.2f}"


def _induction(heads: pd.DataFrame) -> str:
    """The ten heads with the largest induction score, on repeated tokens and on texts."""
    rows = []
    for head in heads.nlargest(10, "repeated_induction").to_dict("records"):
        scores = ("repeated_induction", "induction_mass", "induction_excess", "first_mass")
        rows.append([head_name(head), head["role"], *(_interval(head, name) for name in scores)])
    titles = ["head", "role", "induction score", "after the same token, texts", "over chance"]
    return markdown([*titles, "first token, texts"], rows)


def _bands(heads: pd.DataFrame) -> str:
    rows = []
    for name, members in _members(heads):
        means = [_mean_over_heads(members[column]) for column in ("kernel_R2", "fast")]
        rows.append([name, str(len(members)), *means])
    return markdown(["role", "heads", "R² of the kernel", "variance in fast bands"], rows)


def _mean_over_heads(values: pd.Series) -> str:
    """The mean with its 95 % interval over heads."""
    known = values.dropna()
    if len(known) < 3:
        return ", ".join(f"{value:.2f}" for value in known) or NONE
    half = float(half_width(known.std() / len(known) ** 0.5, len(known)))
    return f"{known.mean():.2f} ± {half:.2f}"


def _correlations(heads: pd.DataFrame) -> str:
    """Spearman's correlations over heads, with bootstrap intervals over heads."""
    known = heads.dropna(subset=["ap_aligned", "ap_phase", "fast"])
    columns = {
        "plasticity at one position": known["ap_aligned"],
        "rotary phase": known["ap_phase"],
        "variance in fast bands": known["fast"],
        "attention on the previous token": known["previous_mass"],
        "far attention": known["far_mass"],
        "sink rate": known["sink_rate"],
        "largest weight": known["top_weight"],
        "induction score": known["repeated_induction"],
    }
    pairs = [("rotary phase", "variance in fast bands")]
    pairs += [("plasticity at one position", name) for name in columns if name != pairs[0][1]][2:]
    rows = []
    for one, other in pairs:
        low, high = _bootstrap(columns[one], columns[other])
        value = rank_correlation(columns[one], columns[other])
        rows.append([f"{one} and {other}", f"{value:.2f}", f"{low:.2f} to {high:.2f}"])
    return markdown(["values of heads", "Spearman's correlation", "95 % interval"], rows)


def _bootstrap(one: pd.Series, other: pd.Series) -> tuple[float, float]:
    """The 95 % interval of the correlation over heads that are drawn again."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"one": one, "other": other})
    found = []
    for _ in range(_RESAMPLES):
        drawn = table.iloc[rng.integers(0, len(table), len(table))]
        found.append(rank_correlation(drawn["one"], drawn["other"]))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _full_weights(dumps: dict[str, tuple[Path, Path | None]], model: Path) -> str:
    rows = []
    for name, (dump, texts) in dumps.items():
        found = largest_differences(dump, model, texts)
        worst = max(found, key=lambda score: found[score])
        rows.append([name, f"{found[worst]:.1e}", f"`{worst}`"])
    return markdown(["dump", "largest difference of a score", "score"], rows)
