"""The tables of docs/findings-attention.md; `make findings` writes them."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

import attention_plasticity as ap
from attention_plasticity.metrics import METRICS
from attention_plasticity.tables.intervals import mean_of_heads, mean_over_heads
from findings.tables import NONE, cells, estimate, head_name, markdown, rank_correlation

PLASTICITY = ("ap_aligned", "ap_attended")
ATTENTION = ("attn_sink_mass", "attn_far_mass", "attn_entropy")
HEADINGS = tuple(METRICS[name].label for name in (*ATTENTION, *PLASTICITY))


def attention_tables(run: ap.Run, context: ap.Run) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of every table. `context` is the same run with context pairs."""
    metrics = run.head_metrics
    metrics = metrics.assign(gap=metrics["ap_attended"] - metrics["ap_aligned"])
    yield "attention-layers", _layers(run, metrics)
    yield "far-heads", _heads(run, metrics["attn_far_mass"])
    yield "sink-heads", _heads(run, metrics["attn_sink_mass"])
    yield "attended", _attended(run, context)
    yield "attended-heads", _heads(run, metrics["gap"])
    yield "correlations", _correlations(metrics)


def _layers(run: ap.Run, metrics: pd.DataFrame) -> str:
    rows = []
    for first in range(0, 30, 5):
        members = metrics[metrics["layer"].between(first, first + 4)]
        names = (*ATTENTION, *PLASTICITY)
        means = [estimate(mean_of_heads(members, run.influences, name)) for name in names]
        rows.append([f"{first}–{first + 4}", *means])
    return markdown(["layers", *HEADINGS], rows)


def _heads(run: ap.Run, values: pd.Series) -> str:
    """The three heads with the largest values and the three with the smallest."""
    columns = [cells(run, name, 2) for name in ATTENTION[:2]]
    columns += [cells(run, name) for name in PLASTICITY]
    ordered = values.sort_values()[::-1].index
    rows = [
        [head_name(run.head_metrics.loc[head]), *(column[head] for column in columns)]
        for head in (*ordered[:3], *ordered[-3:])
    ]
    return markdown(["head (layer.head)", *HEADINGS[:2], *HEADINGS[3:]], rows)


def _attended(run: ap.Run, context: ap.Run) -> str:
    """Kinds of key pairs, at one position and with the queries of a bin as captured."""
    kinds = {
        "two keys of one bin, at random": (run, ("ap_aligned", "ap_pooled")),
        "any two earlier keys, at random": (context, ("ap_aligned", "ap_pooled")),
        "any two earlier keys, by attention": (run, ("ap_attended",)),
    }
    rows = []
    for words, (of_run, names) in kinds.items():
        means = [estimate(mean_over_heads(of_run, name)) for name in names]
        level = of_run.head_metrics[names[0]]
        spread = f"{level.quantile(0.1):.2f} – {level.quantile(0.9):.2f}"
        rows.append([words, means[0], spread, *(means[1:] or [NONE])])
    heading = ["pairs", "at one position", "10 % and 90 % of the heads", "over a bin"]
    return markdown(heading, rows)


def _correlations(metrics: pd.DataFrame) -> str:
    plasticity = [metrics[name] for name in ("ap_aligned", "ap_attended", "ap_overall")]
    names = (*ATTENTION, "attn_max_logit", "q_mean_share")
    rows = [
        [METRICS[name].label, *(_rho(metrics[name], level) for level in plasticity)]
        for name in names
    ]
    attended = plasticity[1]
    rows.append(
        [
            "attended plasticity",
            _rho(attended, plasticity[0]),
            "",
            _rho(attended, plasticity[2]),
        ]
    )
    heading = ["", "ρ with plasticity at one position", "ρ with attended plasticity"]
    return markdown([*heading, "ρ with plasticity over a bucket"], rows)


def _rho(one: pd.Series, other: pd.Series) -> str:
    return f"{round(rank_correlation(one, other), 2) + 0.0:+.2f}"  # no "-0.00"
