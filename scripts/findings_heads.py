"""Tables of docs/findings-smollm2.md about the heads of runs: levels, extremes, layers, drops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from findings.pages import markdown

import attention_plasticity as ap
from attention_plasticity.comparison.runs import compare_runs, labelled
from attention_plasticity.comparison.tables import markdown_table, means_table
from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.run.head_means import gap_is_large
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    corrected,
    mean_of_heads,
    mean_over_heads,
    p_values,
)
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION, OVER_BUCKETS
from findings_tables import corrected_cell, estimate, head_name, rank_correlation

LEVELS = (AT_ONE_POSITION.level, AT_ONE_POSITION.drop, OVER_BUCKETS.level, OVER_BUCKETS.drop)


def head_tables(runs: Mapping[str, ap.Run], base: ap.Run) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of every table. `runs` are compared; the others are of one run."""
    compared = compare_runs(labelled(list(runs.values()), list(runs)))
    yield "levels", markdown_table(means_table(compared, AT_ONE_POSITION)).rstrip()
    yield "levels-bucket", _bucket_levels(runs)
    yield "heads", _extreme_heads(base.head_metrics)
    yield "layers", _layers(base)
    yield "drops", _drops(base)
    yield "position", _position(base)
    yield "gaussian", _gaussian(base.head_metrics)


def _bucket_levels(runs: Mapping[str, ap.Run]) -> str:
    names = ("ap_aligned", "ap_phase", "ap_overall", "ap_drop")
    rows = [
        [label, *(estimate(mean_over_heads(run, name)) for name in names)]
        for label, run in runs.items()
    ]
    heading = ["run", "at one position", "rotary phase", "over a bucket", "drop over a bucket"]
    return markdown(heading, rows)


def _extreme_heads(metrics: pd.DataFrame) -> str:
    ordered = metrics.assign(level=corrected(metrics, "ap_aligned")).sort_values("level")[::-1]
    names = ("ap_aligned", "ap_aligned_drop", "ap_overall", "ap_phase")
    rows = [
        [head_name(head), *(corrected_cell(head, name) for name in names)]
        for head in pd.concat([ordered.head(5), ordered.tail(5)]).to_dict("records")
    ]
    heading = ["head (layer.head)", "at one position", "drop", "over a bucket", "rotary phase"]
    return markdown(heading, rows)


def _layers(run: ap.Run) -> str:
    rows = []
    for first in range(0, 30, 5):
        members = run.head_metrics[run.head_metrics["layer"].between(first, first + 4)]
        level, drop, over, phase = (
            estimate(mean_of_heads(members, run.influences, name))
            for name in ("ap_aligned", "ap_aligned_drop", "ap_overall", "ap_phase")
        )
        spread = f"{corrected(members, 'ap_aligned').std():.3f}"
        rows.append([f"{first}–{first + 4}", level, spread, drop, over, phase])
    heading = ["layers", "at one position", "spread over heads", "drop"]
    return markdown([*heading, "over a bucket", "rotary phase"], rows)


def _drops(run: ap.Run) -> str:
    counts = [_kinds_of_drops(run, name) for name in ("ap_aligned_drop", "ap_drop")]
    rows = [
        [kind.removesuffix(", higher"), *(str(count[kind]) for count in counts)]
        for kind in counts[0]
    ]
    heading = ["plasticity is …", "heads, at one position", "heads, over a bucket"]
    return markdown(heading, rows)


def _kinds_of_drops(run: ap.Run, name: str) -> dict[str, int]:
    drop = corrected(run.head_metrics, name)
    p = p_values(run.head_metrics, name, run.influences)
    found = benjamini_hochberg(p)
    kinds = {
        "lower at the end than at the beginning": drop > 0,
        "… and the 95 % interval of the drop excludes 0": (drop > 0) & (p < 0.05),
        "… and significant at a false discovery rate of 5 %": (drop > 0) & found,
        "higher at the end, and the interval excludes 0": (drop < 0) & (p < 0.05),
        "… and significant at a false discovery rate of 5 %, higher": (drop < 0) & found,
    }
    return {kind: int(heads.sum()) for kind, heads in kinds.items()}


def _position(run: ap.Run) -> str:
    quantities = {
        "variance from position, as captured": "q_R2_total",
        "variance from position, before RoPE": "q_R2_unrotated",
        "share of the mean query, before RoPE": "q_mean_share",
        "layer": "layer",
    }
    rows = []
    for words, column in quantities.items():
        values = run.head_metrics[column]
        mean = "" if column == "layer" else f"{values.mean():.3f}"
        rows.append([words, mean, *(_correlation(run, values, name) for name in LEVELS)])
    heading = ["quantity", "mean over heads", "ρ with plasticity at one position"]
    heading += ["with its drop", "with plasticity over a bucket", "with its drop"]
    return markdown(heading, rows)


def _correlation(run: ap.Run, other: pd.Series, name: str) -> str:
    """Rank correlation with its standard error: values without each group of texts."""
    assert run.influences is not None
    values = corrected(run.head_metrics, name)
    rows = run.influences[run.influences["quantity"] == name]
    rho = rank_correlation(other, values)
    squares = [
        (rho - rank_correlation(other, values - rows[group].to_numpy())) ** 2
        for group in GROUP_COLUMNS
    ]
    return f"{rho:.2f} ± {np.sqrt(sum(squares)):.2f}"


def _gaussian(metrics: pd.DataFrame) -> str:
    names = {
        "share of dimensions with Kolmogorov–Smirnov p below 0.01": "q_noise_frac_ks_p_lt_alpha",
        "median absolute skewness": "q_noise_med_abs_skew",
        "median absolute excess kurtosis": "q_noise_med_abs_kurt",
    }
    rows = [[f"residuals: {name}", "", f"{metrics[key].mean():.2f}"] for name, key in names.items()]
    aligned = (corrected(metrics, "ap_aligned") - metrics["ap_aligned_counted"]).abs()
    gap = metrics["ap_gaussian_gap"].abs()
    columns = (aligned, gap)
    large = sum(gap_is_large(row) for row in metrics.to_dict("records"))
    rows += [
        ["Gaussian minus counted plasticity: median of the absolute value", *_each(columns, 0.5)],
        ["… 90 % of the heads are below", *_each(columns, 0.9)],
        ["… largest absolute value", *_each(columns, 1.0)],
        ["heads with a gap above 0.02 and 2 standard errors", "", str(large)],
    ]
    return markdown(["quantity", "at one position", "over a bucket"], rows)


def _each(columns: Sequence[Any], share: float) -> list[str]:
    return [f"{column.quantile(share):.3f}" for column in columns]
