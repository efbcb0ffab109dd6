"""Tables of heads and of runs, for docs/findings-smollm2.md and docs/findings-attention.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

import attention_plasticity as ap
from attention_plasticity.compare.tables import headings_of
from attention_plasticity.metrics import DISTANCE_QUANTITY, GROUP_COLUMNS, METRICS
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    bucket_errors,
    groups_of,
    half_width,
    mean_of_buckets,
    mean_of_heads,
    mean_over_heads,
    p_values,
)
from attention_plasticity.tables.main_plasticity import AT_ONE_POSITION
from attention_plasticity.tables.profiles import HEAD
from findings.tables import (
    NONE,
    cells,
    estimate,
    head_name,
    markdown,
    rank_correlation,
    with_half,
)

ONE, BUCKET, PHASE = "ap_aligned", "ap_overall", "ap_phase"
DROP, FAR_DROP = "ap_aligned_drop_position", "ap_aligned_drop_distance"
WORDS = {
    ONE: "at one position",
    DROP: "drop from position",
    FAR_DROP: "from distance",
    BUCKET: "over a bucket",
    PHASE: "rotary phase",
}
IMPORTANCE = {"ap_attended": "attended plasticity", "attn_sink_mass": "attention on sinks"}
ATTENTION = {
    name: METRICS[name].label
    for name in ("attn_sink_mass", "attn_far_mass", "attn_entropy", ONE, "ap_attended")
}
Pair = tuple[ap.Run, ap.Run]
Columns = Mapping[str, str]
"""Columns of head_metrics.csv and their headings."""


def head_tables(
    runs: Mapping[str, ap.Run], base: ap.Run, counts: pd.DataFrame
) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of tables of docs/findings-smollm2.md; all but two are of one run."""
    yield "levels", _of_runs(runs, headings_of(AT_ONE_POSITION))
    yield "levels-bucket", _of_runs(runs, {name: WORDS[name] for name in (ONE, PHASE, BUCKET)})
    yield "heads", _ends(base, base.head_metrics[ONE], 3, WORDS | IMPORTANCE)
    spread = ("spread over heads", lambda heads: f"{heads[ONE].std():.3f}")
    yield "layers", _of_layers(base, WORDS, spread)
    yield "drops", _drops(base)
    yield "distances", _distances(base)
    yield "counted-drops", _counted_drops(base, counts)
    yield "position", _position(base)
    yield "gaussian", _gaussian(base.head_metrics)


def attention_tables(run: ap.Run, context: ap.Run) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of docs/findings-attention.md. `context` is the run with context pairs."""
    metrics = run.head_metrics
    shown = {name: words for name, words in ATTENTION.items() if name != "attn_entropy"}
    yield "attention-layers", _of_layers(run, ATTENTION)
    yield "far-heads", _ends(run, metrics["attn_far_mass"], 3, shown)
    yield "sink-heads", _ends(run, metrics["attn_sink_mass"], 3, shown)
    yield "attended", _attended(run, context)
    yield "attended-heads", _ends(run, metrics["ap_attended"] - metrics[ONE], 3, shown)
    yield "correlations", _correlations(metrics)


def _of_runs(runs: Mapping[str, ap.Run], columns: Columns) -> str:
    """Means over the heads of every run."""
    rows = [
        [label, *(estimate(mean_over_heads(run, name)) for name in columns)]
        for label, run in runs.items()
    ]
    return markdown(["run", *columns.values()], rows)


def _of_layers(run: ap.Run, columns: Columns, *after_first: tuple[str, Any]) -> str:
    """Means over the heads of five layers; other cells, with their heading, follow the first."""
    rows = []
    for first in range(0, 30, 5):
        heads = run.head_metrics[run.head_metrics["layer"].between(first, first + 4)]
        level, *more = (estimate(mean_of_heads(heads, run.influences, name)) for name in columns)
        others = [cell(heads) for _, cell in after_first]
        rows.append([f"{first}–{first + 4}", level, *others, *more])
    level, *more = columns.values()
    return markdown(["layers", level, *(words for words, _ in after_first), *more], rows)


def _ends(run: ap.Run, values: pd.Series, number: int, columns: Columns) -> str:
    """Some heads with the largest values and as many with the smallest."""
    shown = [cells(run, name, 2 if name.startswith("attn_") else 3) for name in columns]
    ordered = values.sort_values()[::-1].index
    rows = [
        [head_name(run.head_metrics.loc[head]), *(column[head] for column in shown)]
        for head in (*ordered[:number], *ordered[-number:])
    ]
    return markdown(["head (layer.head)", *columns.values()], rows)


def _drops(run: ap.Run) -> str:
    """In how many heads the drop and each of its parts differ from 0."""
    significant = "… and significant at a false discovery rate of 5 %"
    words = ["positive", "… and the 95 % interval excludes 0", significant]
    columns = [[*words, "negative, and the interval excludes 0", significant]]
    for name in ("ap_aligned_drop", DROP, FAR_DROP):
        drop = run.head_metrics[name]
        p = p_values(run.head_metrics, name, run.influences)
        found = benjamini_hochberg(p)
        falls, rises = drop > 0, drop < 0
        which = (falls, falls & (p < 0.05), falls & found, rises & (p < 0.05), rises & found)
        columns.append([str(own.sum()) for own in which])
    heading = ["heads in which it is …", "drop", "from position", "from distance"]
    return markdown(heading, list(zip(*columns, strict=True)))


def _distances(run: ap.Run) -> str:
    """Plasticity by distance: of all queries, and of both halves of the context."""
    table = run.table("distances")
    bins = run.table("bins").assign(distance=lambda own: own["q_bin"] - own["k_bin"])
    half = (bins["q_bin"].max() + 1) // 2
    errors = bucket_errors(run, DISTANCE_QUANTITY)
    assert errors is not None
    means = mean_of_buckets(errors, run.eligible_heads)
    rows = []
    for number, own in table.groupby("distance_bin"):
        found = means[means["q_bucket"] == number].iloc[0]
        at = bins[bins["distance"] == number]
        halves = (at[at["q_bin"] < half], at[at["q_bin"] >= half])
        values = [f"{part['plasticity'].mean():.3f}" if len(part) else NONE for part in halves]
        tokens = f"{own['distance'].mean():,.0f}"
        rows.append([tokens, with_half(found["plasticity"], found["half_width"]), *values])
    return markdown(["tokens", "all queries", "first half", "second half"], rows)


def _counted_drops(run: ap.Run, counts: pd.DataFrame) -> str:
    """The drop and its parts, estimated and counted, as means over heads."""
    heads = run.head_metrics.merge(counts, on=HEAD)
    names = {"ap_aligned_drop": "drop", DROP: "drop_position", FAR_DROP: "drop_distance"}
    words = ("drop", "from position", "from distance")
    rows = [
        [
            word,
            estimate(mean_over_heads(run, name)),
            f"{heads[counted].mean():.3f}",
            f"{rank_correlation(heads[name], heads[counted]):.2f}",
        ]
        for word, (name, counted) in zip(words, names.items(), strict=True)
    ]
    return markdown(["", "estimated", "counted", "ρ over heads"], rows)


def _position(run: ap.Run) -> str:
    quantities = {
        "q_R2_total": "variance from position, as captured",
        "q_R2_unrotated": "variance from position, before RoPE",
        "q_mean_share": "share of the mean query, before RoPE",
        "layer": "layer",
    }
    rows = []
    for column, words in quantities.items():
        values = run.head_metrics[column]
        mean = "" if column == "layer" else f"{values.mean():.3f}"
        correlations = [_with_interval(run, values, name) for name in (ONE, DROP, BUCKET)]
        rows.append([words, mean, *correlations])
    heading = ["quantity", "mean over heads", "ρ with plasticity at one position"]
    return markdown(
        [*heading, "with its drop from position", "with plasticity over a bucket"], rows
    )


def _with_interval(run: ap.Run, other: pd.Series, name: str) -> str:
    """Rank correlation with half of its 95 % interval: values without each group of texts."""
    assert run.influences is not None
    values = run.head_metrics[name]
    rows = run.influences[run.influences["quantity"] == name]
    rho = rank_correlation(other, values)
    if rows.empty:
        return f"{rho:.2f}"
    without = [rank_correlation(other, values + rows[group].to_numpy()) for group in GROUP_COLUMNS]
    error = np.linalg.norm(rho - np.array(without))
    return with_half(rho, float(half_width(error, groups_of(run))), 2)


def _gaussian(metrics: pd.DataFrame) -> str:
    residuals = {
        "share of dimensions with Kolmogorov–Smirnov p below 0.01": "q_noise_frac_ks_p_lt_alpha",
        "median absolute skewness": "q_noise_med_abs_skew",
        "median absolute excess kurtosis": "q_noise_med_abs_kurt",
    }
    rows = [
        [f"residuals: {words}", f"{metrics[name].mean():.2f}"] for words, name in residuals.items()
    ]
    gap = (metrics[ONE] - metrics["ap_aligned_counted"]).abs()
    shares = {
        "Gaussian minus counted plasticity: median of the absolute value": 0.5,
        "… 90 % of the heads are below": 0.9,
        "… largest absolute value": 1.0,
    }
    rows += [[words, f"{gap.quantile(share):.3f}"] for words, share in shares.items()]
    return markdown(["quantity", "value"], rows)


def _attended(run: ap.Run, context: ap.Run) -> str:
    """Kinds of key pairs, at one position and with the queries of a bin as captured."""
    kinds = {
        "two keys of one bin, at random": (run, (ONE, "ap_pooled")),
        "any two earlier keys, at random": (context, (ONE, "ap_pooled")),
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
    names = (*list(ATTENTION)[:3], "attn_max_logit", "q_mean_share", "ap_attended")
    levels = (ONE, "ap_attended", BUCKET)
    rows = [
        [
            METRICS[name].label,
            *("" if name == level else _signed(metrics, name, level) for level in levels),
        ]
        for name in names
    ]
    kinds = ("plasticity at one position", "attended plasticity", "plasticity over a bucket")
    return markdown(["", *(f"ρ with {kind}" for kind in kinds)], rows)


def _signed(metrics: pd.DataFrame, one: str, other: str) -> str:
    return f"{round(rank_correlation(metrics[one], metrics[other]), 2) + 0.0:+.2f}"  # no "-0.00"


def stability_table(compared: Mapping[str, Pair]) -> str:
    """Rank correlations and differences of pairs of runs."""
    rows = [
        [
            name,
            *(_rho(pair, column) for column in (ONE, DROP)),
            *(_difference(pair, column) for column in (ONE, DROP)),
            _distance(pair, ONE),
            _rho(pair, BUCKET),
        ]
        for name, pair in compared.items()
    ]
    heading = ["runs", "ρ of plasticity", "ρ of drop from position", "difference of the mean"]
    heading += ["difference of the drop from position", "mean absolute difference"]
    return markdown([*heading, "ρ over a bucket"], rows)


def pairs_table(runs: Mapping[str, ap.Run]) -> str:
    """The kinds of key pairs, at one position and over a bucket; the first run is the default."""
    default, rows = next(iter(runs)), []
    for name, run in runs.items():
        row = [f"`{name}`"]
        for columns in ((ONE, DROP), (BUCKET,)):
            row += [estimate(mean_over_heads(run, column)) for column in columns]
            row.append(NONE if name == default else _rho((runs[default], run), columns[0]))
        rows.append(row)
    rho = f"ρ with `{default}`"
    return markdown(
        ["pairs", "at one position", "drop from position", rho, "over a bucket", rho], rows
    )


def models_table(runs: Mapping[str, ap.Run]) -> str:
    """The query models, over a bucket; the first run is the default."""
    default, rows = next(iter(runs)), []
    for name, run in runs.items():
        pair = (runs[default], run)
        compared = [_rho(pair, BUCKET), _distance(pair, BUCKET)]
        own = [NONE, NONE] if name == default else compared
        rows.append([f"`{name}`", estimate(mean_over_heads(run, BUCKET)), *own])
    heading = ["query model", "over a bucket", f"ρ with `{default}`", "mean absolute difference"]
    return markdown(heading, rows)


def _rho(pair: Pair, name: str) -> str:
    """Rank correlation of a column over the heads of both runs."""
    return f"{rank_correlation(*_both(pair, name)):.3f}"


def _distance(pair: Pair, name: str) -> str:
    """Mean over heads of the absolute difference."""
    one, other = _both(pair, name)
    return f"{(other - one).abs().mean():.3f}"


def _difference(pair: Pair, name: str) -> str:
    """The second run minus the first, text by text if the texts are the same."""
    table = ap.summary(list(pair), None, [name], labels=["one", "other"])
    [found] = table[table["minus"] == "one"].to_dict("records")
    half = (found["high"] - found["low"]) / 2
    return f"{found['mean']:+.3f} ± {half:.3f}"


def _both(pair: Pair, name: str) -> Sequence[pd.Series]:
    """The column of both runs, with the same heads in the same order."""
    one, other = (run.head_metrics.set_index(HEAD)[name] for run in pair)
    return one, other.reindex(one.index)
