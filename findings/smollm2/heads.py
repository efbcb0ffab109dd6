"""Tables of heads and of runs, for docs/findings-smollm2.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

import attention_plasticity as ap
from attention_plasticity.metrics import GROUP_COLUMNS, HEAD, METRICS
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    groups_of,
    half_width,
    mean_of_heads,
    mean_over_heads,
    p_values,
)
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
    ONE: "RoPE-aligned",
    "ap_aligned_drop": "drop",
    DROP: "drop from position",
    FAR_DROP: "from distance",
    PHASE: "rotary phase",
    BUCKET: "over a bucket",
    "ap_attended": "attended",
    "attn_sink_mass": "sinks",
    "attn_far_mass": "far attention",
}
OF_RUNS = (ONE, "ap_aligned_drop", DROP, FAR_DROP, PHASE, BUCKET)
OF_HEADS = (ONE, "ap_attended", BUCKET, PHASE, "attn_sink_mass", "attn_far_mass")
OF_LAYERS = (ONE, FAR_DROP, "ap_attended", PHASE, "attn_sink_mass", "attn_far_mass")
Pair = tuple[ap.Run, ap.Run]


def head_tables(runs: Mapping[str, ap.Run], base: ap.Run) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of tables of docs/findings-smollm2.md; all but one are of one run."""
    yield "levels", _of_runs(runs)
    yield "heads", _ends(base, base.head_metrics[ONE], 3)
    yield "layers", _of_layers(base)
    yield "drops", _drops(base)
    yield "position", _position(base)
    yield "correlations", _correlations(base.head_metrics)


def _of_runs(runs: Mapping[str, ap.Run]) -> str:
    """Means over the heads of every run."""
    rows = [
        [label, *(estimate(mean_over_heads(run, name)) for name in OF_RUNS)]
        for label, run in runs.items()
    ]
    return markdown(["run", *(WORDS[name] for name in OF_RUNS)], rows)


def _of_layers(run: ap.Run) -> str:
    """Means over the heads of five layers, and the spread of plasticity over these heads."""
    rows = []
    for first in range(0, 30, 5):
        heads = run.head_metrics[run.head_metrics["layer"].between(first, first + 4)]
        level, *more = (estimate(mean_of_heads(heads, run.influences, name)) for name in OF_LAYERS)
        rows.append([f"{first}–{first + 4}", level, f"{heads[ONE].std():.3f}", *more])
    level, *more = (WORDS[name] for name in OF_LAYERS)
    return markdown(["layers", level, "spread over heads", *more], rows)


def _ends(run: ap.Run, values: pd.Series, number: int) -> str:
    """Some heads with the largest values and as many with the smallest."""
    shown = [cells(run, name, 2 if name.startswith("attn_") else 3) for name in OF_HEADS]
    ordered = values.sort_values()[::-1].index
    rows = [
        [head_name(run.head_metrics.loc[head]), *(column[head] for column in shown)]
        for head in (*ordered[:number], *ordered[-number:])
    ]
    return markdown(["head (layer.head)", *(WORDS[name] for name in OF_HEADS)], rows)


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
        correlations = [_with_interval(run, values, name) for name in (ONE, BUCKET)]
        rows.append([words, mean, *correlations])
    heading = ["quantity", "mean over heads", "ρ with RoPE-aligned plasticity"]
    return markdown([*heading, "with plasticity over a bucket"], rows)


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


def attended_table(run: ap.Run, context: ap.Run) -> str:
    """Kinds of key pairs; `context` is the run with context pairs."""
    kinds = {
        "two keys of one bin, at random": (run, ONE),
        "any two earlier keys, at random": (context, ONE),
        "any two earlier keys, by attention": (run, "ap_attended"),
    }
    rows = []
    for words, (of_run, name) in kinds.items():
        level = of_run.head_metrics[name]
        spread = f"{level.quantile(0.1):.2f} – {level.quantile(0.9):.2f}"
        rows.append([words, estimate(mean_over_heads(of_run, name)), spread])
    return markdown(["pairs", "RoPE-aligned", "10 % and 90 % of the heads"], rows)


def _correlations(metrics: pd.DataFrame) -> str:
    names = ("attn_sink_mass", "attn_far_mass", "attn_entropy", "q_mean_share", "ap_attended")
    levels = (ONE, "ap_attended", BUCKET)
    rows = [
        [
            METRICS[name].label,
            *("" if name == level else _signed(metrics, name, level) for level in levels),
        ]
        for name in names
    ]
    kinds = ("RoPE-aligned plasticity", "attended plasticity", "plasticity over a bucket")
    return markdown(["", *(f"ρ with {kind}" for kind in kinds)], rows)


def _signed(metrics: pd.DataFrame, one: str, other: str) -> str:
    return f"{round(rank_correlation(metrics[one], metrics[other]), 2) + 0.0:+.2f}"  # no "-0.00"


def stability_table(compared: Mapping[str, Pair]) -> str:
    """Rank correlations and differences of pairs of runs."""
    rows = [
        [
            name,
            *(_rho(pair, column) for column in (ONE, "ap_aligned_drop")),
            _difference(pair, ONE),
            _distance(pair, ONE),
        ]
        for name, pair in compared.items()
    ]
    heading = ["runs", "ρ of plasticity", "ρ of drop", "difference of the mean"]
    return markdown([*heading, "mean absolute difference"], rows)


def pairs_table(runs: Mapping[str, ap.Run]) -> str:
    """The kinds of key pairs, RoPE-aligned and over a bucket; the first run is the default."""
    default, rows = next(iter(runs)), []
    for name, run in runs.items():
        row = [f"`{name}`"]
        for columns in ((ONE, "ap_aligned_drop"), (BUCKET,)):
            row += [estimate(mean_over_heads(run, column)) for column in columns]
            row.append(NONE if name == default else _rho((runs[default], run), columns[0]))
        rows.append(row)
    rho = f"ρ with `{default}`"
    return markdown(["pairs", "RoPE-aligned", "drop", rho, "over a bucket", rho], rows)


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
