"""Tables of docs/findings-smollm2.md that compare runs: other texts, other settings."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

import attention_plasticity as ap
from attention_plasticity.tables.intervals import mean_over_heads
from attention_plasticity.tables.profiles import HEAD
from findings.tables import NONE, estimate, markdown, rank_correlation

Pair = tuple[ap.Run, ap.Run]


def stability_table(compared: Mapping[str, Pair]) -> str:
    """Rank correlations and differences of pairs of runs."""
    rows = [
        [
            name,
            *(correlation(pair, column) for column in ("ap_aligned", "ap_aligned_drop")),
            *(difference(pair, column) for column in ("ap_aligned", "ap_aligned_drop")),
            mean_distance(pair, "ap_aligned"),
            correlation(pair, "ap_overall"),
        ]
        for name, pair in compared.items()
    ]
    heading = ["runs", "ρ of plasticity", "ρ of drop", "difference of the mean"]
    heading += ["difference of the drop", "mean absolute difference"]
    return markdown([*heading, "ρ over a bucket"], rows)


def pairs_table(runs: Mapping[str, ap.Run], default: str) -> str:
    """The kinds of key pairs, at one position and over a bucket."""
    rows = []
    for name, run in runs.items():
        cells = [f"`{name}`"]
        for level, *more in (("ap_aligned", "ap_aligned_drop"), ("ap_overall",)):
            cells += [estimate(mean_over_heads(run, column)) for column in (level, *more)]
            cells.append(NONE if name == default else correlation((runs[default], run), level))
        rows.append(cells)
    rho = f"ρ with `{default}`"
    return markdown(["pairs", "at one position", "drop", rho, "over a bucket", rho], rows)


def models_table(runs: Mapping[str, ap.Run], default: str) -> str:
    """The query models, over a bucket."""
    rows = []
    for name, run in runs.items():
        pair = (runs[default], run)
        own = name == default
        rows.append(
            [
                f"`{name}`",
                estimate(mean_over_heads(run, "ap_overall")),
                NONE if own else correlation(pair, "ap_overall"),
                NONE if own else mean_distance(pair, "ap_overall"),
            ]
        )
    heading = ["query model", "over a bucket", f"ρ with `{default}`", "mean absolute difference"]
    return markdown(heading, rows)


def correlation(pair: Pair, name: str) -> str:
    """Rank correlation of a column over the heads of both runs."""
    return f"{rank_correlation(*_both(pair, name)):.3f}"


def mean_distance(pair: Pair, name: str) -> str:
    """Mean over heads of the absolute difference."""
    one, other = _both(pair, name)
    return f"{(other - one).abs().mean():.3f}"


def difference(pair: Pair, name: str) -> str:
    """The second run minus the first, text by text if the texts are the same."""
    table = ap.summary(list(pair), None, [name], labels=["one", "other"])
    [found] = table[table["minus"] == "one"].to_dict("records")
    half = (found["high"] - found["low"]) / 2
    return f"{found['mean']:+.3f} ± {half:.3f}"


def _both(pair: Pair, name: str) -> tuple[pd.Series, pd.Series]:
    """The column of both runs, with the same heads in the same order."""
    one, other = (run.head_metrics.set_index(HEAD)[name] for run in pair)
    return one, other.reindex(one.index)
