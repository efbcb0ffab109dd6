"""Tables of docs/findings-smollm2.md about the heads of runs: levels, extremes, layers, drops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

import attention_plasticity as ap
from attention_plasticity.compare.tables import headings_of
from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    groups_of,
    half_width,
    mean_of_heads,
    mean_over_heads,
    p_values,
)
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from findings.tables import cells, estimate, head_name, markdown, rank_correlation, with_half

LEVELS = ("ap_aligned", "ap_aligned_drop", "ap_overall")


def head_tables(runs: Mapping[str, ap.Run], base: ap.Run) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of every table. `runs` are compared; the others are of one run."""
    yield "levels", _levels(runs)
    yield "levels-bucket", _bucket_levels(runs)
    yield "heads", _extreme_heads(base)
    yield "layers", _layers(base)
    yield "drops", _drops(base)
    yield "position", _position(base)
    yield "gaussian", _gaussian(base.head_metrics)


def _levels(runs: Mapping[str, ap.Run]) -> str:
    headings = headings_of(AT_ONE_POSITION)
    rows = [
        [label, *(estimate(mean_over_heads(run, name)) for name in headings)]
        for label, run in runs.items()
    ]
    return markdown(["run", *headings.values()], rows)


def _bucket_levels(runs: Mapping[str, ap.Run]) -> str:
    names = ("ap_aligned", "ap_phase", "ap_overall")
    rows = [
        [label, *(estimate(mean_over_heads(run, name)) for name in names)]
        for label, run in runs.items()
    ]
    return markdown(["run", "at one position", "rotary phase", "over a bucket"], rows)


def _extreme_heads(run: ap.Run) -> str:
    ordered = run.head_metrics["ap_aligned"].sort_values()[::-1].index
    columns = [cells(run, name) for name in (*LEVELS, "ap_phase")]
    rows = [
        [head_name(run.head_metrics.loc[head]), *(column[head] for column in columns)]
        for head in (*ordered[:5], *ordered[-5:])
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
        spread = f"{members['ap_aligned'].std():.3f}"
        rows.append([f"{first}–{first + 4}", level, spread, drop, over, phase])
    heading = ["layers", "at one position", "spread over heads", "drop"]
    return markdown([*heading, "over a bucket", "rotary phase"], rows)


def _drops(run: ap.Run) -> str:
    drop = run.head_metrics["ap_aligned_drop"]
    p = p_values(run.head_metrics, "ap_aligned_drop", run.influences)
    found = benjamini_hochberg(p)
    kinds = {
        "lower at the end than at the beginning": drop > 0,
        "… and the 95 % interval of the drop excludes 0": (drop > 0) & (p < 0.05),
        "… and significant at a false discovery rate of 5 %": (drop > 0) & found,
        "higher at the end, and the interval excludes 0": (drop < 0) & (p < 0.05),
        "… and significant at a false discovery rate of 5 %, higher": (drop < 0) & found,
    }
    rows = [[kind.removesuffix(", higher"), str(heads.sum())] for kind, heads in kinds.items()]
    return markdown(["plasticity is …", "heads"], rows)


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
    heading += ["with its drop", "with plasticity over a bucket"]
    return markdown(heading, rows)


def _correlation(run: ap.Run, other: pd.Series, name: str) -> str:
    """Rank correlation with half of its 95 % interval: values without each group of texts."""
    assert run.influences is not None
    values = run.head_metrics[name]
    rows = run.influences[run.influences["quantity"] == name]
    rho = rank_correlation(other, values)
    if rows.empty:
        return f"{rho:.2f}"
    squares = [
        (rho - rank_correlation(other, values + rows[group].to_numpy())) ** 2
        for group in GROUP_COLUMNS
    ]
    return with_half(rho, float(half_width(np.sqrt(sum(squares)), groups_of(run))), 2)


def _gaussian(metrics: pd.DataFrame) -> str:
    names = {
        "share of dimensions with Kolmogorov–Smirnov p below 0.01": "q_noise_frac_ks_p_lt_alpha",
        "median absolute skewness": "q_noise_med_abs_skew",
        "median absolute excess kurtosis": "q_noise_med_abs_kurt",
    }
    rows = [[f"residuals: {name}", f"{metrics[key].mean():.2f}"] for name, key in names.items()]
    gap = (metrics["ap_aligned"] - metrics["ap_aligned_counted"]).abs()
    shares = {
        "Gaussian minus counted plasticity: median of the absolute value": 0.5,
        "… 90 % of the heads are below": 0.9,
        "… largest absolute value": 1.0,
    }
    rows += [[words, f"{gap.quantile(share):.3f}"] for words, share in shares.items()]
    return markdown(["quantity", "value"], rows)
