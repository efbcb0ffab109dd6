"""Make all numbers and figures of the findings from the model weights: `make findings`.

The findings are docs/findings-smollm2.md and docs/findings-attention.md.

Captures and analyses are kept in one folder, so that an interrupted run can be continued. Tables
are written between the markers of the document. The default run and its figures are written to
results/smollm2-135m.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
from findings_attention import attention_tables, markdown

import attention_plasticity as ap
from attention_plasticity.comparison.differences import run_differences
from attention_plasticity.comparison.formats import as_markdown
from attention_plasticity.comparison.runs import compare_runs, labelled
from attention_plasticity.metrics import GROUP_COLUMNS
from attention_plasticity.plots import save_figure
from attention_plasticity.plots.all_figures import save_all
from attention_plasticity.plots.style import (
    BLUE,
    INK,
    VERMILION,
    figure_style,
    footnote,
    new_figure,
    plasticity_axis,
    position_axis,
)
from attention_plasticity.run.head_means import MeanEstimate, gap_is_large
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import (
    benjamini_hochberg,
    bucket_errors,
    corrected,
    mean_bucket_errors,
    mean_of_heads,
    mean_over_heads,
    p_values,
)
from attention_plasticity.tables.profiles import head_profiles, mean_profile

FOLDER = Path("demo-smollm2")
RESULTS = Path("results/smollm2-135m")
DOCUMENT, ATTENTION = Path("docs/findings-smollm2.md"), Path("docs/findings-attention.md")
BASE = "moby-dick-8192"
CAPTURES = {
    BASE: ("moby-dick", 8192, 12),
    "moby-dick-2048": ("moby-dick", 2048, 12),
    "moby-dick-16384": ("moby-dick", 16384, 4),
    "jargon-file-8192": ("jargon-file", 8192, 6),
}
METHODS = [
    *(
        (model, pairs)
        for model in ("positional", "full", "diagonal")
        for pairs in ("bucket", "local")
    ),
    ("positional", "context"),
    ("positional", "attended"),
]
TRAINED = 8192


def main() -> None:
    """Capture, analyse, and write the results."""
    for name, (book, context, texts) in CAPTURES.items():
        _command(
            *("demo", "--capture", "--output_dir", FOLDER, "--book", book),
            *("--context", context, "--texts", texts),
        )
        print(f"{name}: captured and analysed", file=sys.stderr)
    dump = FOLDER / "dumps" / BASE
    runs = {name: ap.open_run(FOLDER / "results" / name) for name in CAPTURES}
    for parity, half in enumerate(("even-texts", "odd-texts")):
        part = _half(dump, FOLDER / "dumps" / f"{BASE}-{half}", parity)
        runs[half] = _analysed(part, half)
    runs["another seed"] = _analysed(dump, "another-seed", seed=1)
    for model, pairs in METHODS:
        name = f"{model}-{pairs}"
        runs[name] = _analysed(dump, name, query_model=model, pair_sampling=pairs)
    _keep_results(runs)
    _write_tables(DOCUMENT, dict(_tables(runs)))
    _write_tables(ATTENTION, dict(attention_tables(runs[BASE])))


def _command(*arguments: object) -> None:
    command = [sys.executable, "-m", "attention_plasticity", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _analysed(dump: Path, name: str, **fields: Any) -> ap.Run:
    print(f"{name}: analysing", file=sys.stderr)
    return ap.analyze_dump(dump, output_dir=str(FOLDER / "results" / name), **fields)


def _half(dump: Path, target: Path, parity: int) -> Path:
    """The dump of every second text."""
    if not (target / "dump.json").exists():
        for folder in ap.open_dump(dump).folders.values():
            table = pq.read_table(folder / "data.parquet")
            mine = pc.equal(pc.bit_wise_and(table["example_id"], 1), parity)
            (target / folder.name).mkdir(parents=True, exist_ok=True)
            pq.write_table(table.filter(mine), target / folder.name / "data.parquet")
        shutil.copy(dump / "dump.json", target)
    return target


def _keep_results(runs: dict[str, ap.Run]) -> None:
    run = runs[BASE]
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in (*run.info["tables"].values(), "run.json"):
        shutil.copy(run.folder / name, RESULTS)
    for path in save_all(RESULTS, RESULTS / "figures"):
        print(path, file=sys.stderr)
    context = runs["positional-context"]
    save_figure(context.plot("distances"), RESULTS / "figures" / "distances.png")
    _draw_beyond(runs)


def _draw_beyond(runs: dict[str, ap.Run]) -> None:
    with figure_style():
        figure, axes = new_figure()
        for name, colour in ((BASE, BLUE), ("moby-dick-16384", VERMILION)):
            mean = mean_profile(head_profiles(runs[name].bucket_plasticity))
            axes.fill_between(
                mean["q_position"], mean["low"], mean["high"], color=colour, alpha=0.15, linewidth=0
            )
            label = f"texts of {CAPTURES[name][1]:,} tokens"
            errors = mean_bucket_errors(runs[name])
            assert errors is not None
            axes.errorbar(
                mean["q_position"],
                errors["plasticity"],
                errors["half_width"],
                color=colour,
                label=label,
                linewidth=1.4,
                elinewidth=0.8,
                capsize=2,
            )
        plasticity_axis(axes, "plasticity over a bucket")
        position_axis(axes, np.array([1.0, 16384.0]), log=False)
        axes.axvline(TRAINED, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.annotate(
            "end of the trained context",
            (TRAINED, 0.04),
            (4, 0),
            textcoords="offset points",
            fontsize=8,
        )
        axes.legend(loc="upper right")
        axes.set_title("Beyond the trained context: SmolLM2-135M")
        footnote(
            figure,
            "mean over 270 heads, corrected for bias",
            "band: middle 50 % of heads",
            "whiskers: 95 % interval over texts",
        )
    save_figure(figure, RESULTS / "figures" / "beyond.png")


def _tables(runs: dict[str, ap.Run]) -> Iterator[tuple[str, str]]:
    origin = json.loads(next((FOLDER / "model").glob("*/origin.json")).read_text())
    yield (
        "perplexity",
        markdown(
            ["text", "perplexity"],
            [
                ["a held-out passage of Moby-Dick, 1,024 tokens", f"{origin['perplexity']:.1f}"],
                ["the same tokens in random order", f"{origin['perplexity_shuffled']:,.0f}"],
            ],
        ),
    )
    opened = [FinishedRun.open(runs[name].folder) for name in CAPTURES]
    yield "levels", as_markdown(compare_runs(labelled(opened, list(CAPTURES)))).rstrip()
    yield "heads", _extreme_heads(runs[BASE].head_metrics)
    yield "layers", _layers(runs[BASE])
    yield "drops", _drops(runs[BASE].head_metrics, runs[BASE].influences)
    yield "gaussian", _gaussian(runs[BASE].head_metrics)
    yield "position", _position(runs[BASE])
    yield "beyond", _beyond(runs["moby-dick-16384"])
    others = ["another seed", "jargon-file-8192", "moby-dick-2048", "moby-dick-16384"]
    rows = [
        _agreement("six of the texts against the other six", runs["even-texts"], runs["odd-texts"])
    ]
    rows += [_agreement(f"{BASE} against {name}", runs[BASE], runs[name]) for name in others]
    heading = [
        "runs",
        "ρ of plasticity",
        "ρ of drop",
        "difference of the mean",
        "difference of the drop",
        "mean absolute difference",
    ]
    yield "stability", markdown(heading, rows)
    default = runs["positional-bucket"]
    rows = [_method(f"`{m}`", f"`{p}`", runs[f"{m}-{p}"], default) for m, p in METHODS]
    heading = [
        "query model",
        "pairs",
        "plasticity",
        "drop",
        "difference of the mean",
        "ρ with the default",
        "mean absolute difference",
    ]
    yield "methods", markdown(heading, rows)


def _extreme_heads(metrics: pd.DataFrame) -> str:
    ordered = metrics.assign(level=corrected(metrics, "ap_overall")).sort_values("level")[::-1]
    rows = [
        [
            f"{head['layer']:.0f}.{head['q_head']:.0f}",
            *(_with_error(head, name) for name in ("ap_overall", "ap_drop")),
            f"{head['q_R2_total']:.3f}",
        ]
        for head in pd.concat([ordered.head(5), ordered.tail(5)]).to_dict("records")
    ]
    return markdown(["head (layer.head)", "plasticity", "drop", "variance from position"], rows)


def _with_error(head: Mapping[Any, Any], name: str) -> str:
    return f"{head[name] - head[f'{name}_bias']:.3f} ± {head[f'{name}_se']:.3f}"


def _layers(run: ap.Run) -> str:
    rows = []
    for first in range(0, 30, 5):
        members = run.head_metrics[run.head_metrics["layer"].between(first, first + 4)]
        means = [mean_of_heads(members, run.influences, name) for name in ("ap_overall", "ap_drop")]
        rows.append(
            [
                f"{first}–{first + 4}",
                _estimate(means[0]),
                f"{corrected(members, 'ap_overall').std():.3f}",
                _estimate(means[1]),
                f"{members['q_R2_total'].mean():.3f}",
            ]
        )
    heading = ["layers", "plasticity", "spread over heads", "drop", "variance from position"]
    return markdown(heading, rows)


def _estimate(mean: MeanEstimate, sign: str = "") -> str:
    return f"{mean.value:{sign}.3f} ± {mean.standard_error:.3f}"


def _drops(metrics: pd.DataFrame, influences: pd.DataFrame | None) -> str:
    drop = corrected(metrics, "ap_drop")
    p = p_values(metrics, "ap_drop", influences)
    found = benjamini_hochberg(p)
    kinds = {
        "lower at the end than at the beginning": drop > 0,
        "… and the 95 % interval of the drop excludes 0": (drop > 0) & (p < 0.05),
        "… and significant at a false discovery rate of 5 %": (drop > 0) & found,
        "higher at the end, and the interval excludes 0": (drop < 0) & (p < 0.05),
        "… and significant at a false discovery rate of 5 %, higher": (drop < 0) & found,
    }
    return markdown(
        ["plasticity is …", "heads"],
        [[k.removesuffix(", higher"), str(int(v.sum()))] for k, v in kinds.items()],
    )


def _gaussian(metrics: pd.DataFrame) -> str:
    names = {
        "share of dimensions with Kolmogorov–Smirnov p below 0.01": "q_noise_frac_ks_p_lt_alpha",
        "median absolute skewness": "q_noise_med_abs_skew",
        "median absolute excess kurtosis": "q_noise_med_abs_kurt",
    }
    rows = [[f"residuals: {name}", f"{metrics[key].mean():.2f}"] for name, key in names.items()]
    gap = metrics["ap_gaussian_gap"].abs()
    large = sum(gap_is_large(row) for row in metrics.to_dict("records"))
    rows += [
        ["Gaussian minus counted plasticity: median of the absolute value", f"{gap.median():.3f}"],
        ["largest absolute value", f"{gap.max():.3f}"],
        ["heads with a gap above 0.02 and 2 standard errors", str(large)],
    ]
    return markdown(["quantity", "mean over heads, or as named"], rows)


def _position(run: ap.Run) -> str:
    metrics = run.head_metrics
    pairs = [
        ("variance from position", "q_R2_total", "plasticity", "ap_overall"),
        ("variance from position", "q_R2_total", "drop", "ap_drop"),
        ("R² of log position", "q_R2_scalar", "plasticity", "ap_overall"),
        ("layer", "layer", "plasticity", "ap_overall"),
    ]
    rows = [[one, other, _spearman(run, metrics[a], b)] for one, a, other, b in pairs]
    return markdown(["quantity", "correlated with", "Spearman's ρ over 270 heads"], rows)


def _spearman(run: ap.Run, other: Any, name: str) -> str:
    """Rank correlation with its standard error: values without each group of texts."""
    assert run.influences is not None
    values = corrected(run.head_metrics, name)
    rows = run.influences[run.influences["quantity"] == name]
    rho = other.corr(values, method="spearman")
    squares = [
        (rho - other.corr(values - rows[group].to_numpy(), method="spearman")) ** 2
        for group in GROUP_COLUMNS
    ]
    return f"{rho:.2f} ± {np.sqrt(sum(squares)):.2f}"


def _beyond(run: ap.Run) -> str:
    """Means over parts of the context, and their differences from the end of the trained part."""
    errors = bucket_errors(run)
    assert errors is not None
    place = head_profiles(run.bucket_plasticity)[["layer", "q_head", "q_bucket", "q_position"]]
    rows = errors.merge(place, on=["layer", "q_head", "q_bucket"])
    rows["level"] = rows["value"] - rows["bias"]
    columns = ["level", *GROUP_COLUMNS]
    edges = [0, 2048, 4096, 8192, 12288, 16384]
    means = {
        (low, high): rows[(rows["q_position"] >= low) & (rows["q_position"] < high)]
        .groupby(["layer", "q_head"])[columns]
        .mean()
        for low, high in pairwise(edges)
    }
    last = means[4096, 8192]
    lines = []
    for (low, high), heads in means.items():
        change = (heads - last).mean()
        error = np.linalg.norm(change[list(GROUP_COLUMNS)])
        lower = f"{int((heads['level'] < last['level']).sum())} of {len(heads)}"
        own = low == 4096
        lines.append(
            [
                f"{low:,}–{high:,}",
                f"{heads['level'].mean():.3f}",
                f"{heads['level'].std():.3f}",
                "–" if own else f"{change['level']:+.3f} ± {error:.3f}",
                "–" if own else lower,
            ]
        )
    heading = ["query position", "plasticity", "spread over heads", "minus 4,096–8,192"]
    return markdown([*heading, "heads lower than at 4,096–8,192"], lines)


def _agreement(name: str, one: ap.Run, other: ap.Run) -> list[str]:
    both = one.head_metrics.merge(other.head_metrics, on=["layer", "q_head"])
    levels = [both[f"ap_overall_{side}"] - both[f"ap_overall_bias_{side}"] for side in "xy"]
    drops = [both[f"ap_drop_{side}"] - both[f"ap_drop_bias_{side}"] for side in "xy"]
    return [
        name,
        f"{levels[0].corr(levels[1], method='spearman'):.3f}",
        f"{drops[0].corr(drops[1], method='spearman'):.3f}",
        _difference(one, other, "ap_overall"),
        _difference(one, other, "ap_drop"),
        f"{(levels[1] - levels[0]).abs().mean():.3f}",
    ]


def _difference(one: ap.Run, other: ap.Run, name: str) -> str:
    """The second run minus the first, text by text if the texts are the same."""
    found = (
        run_differences(labelled([one, other], ["one", "other"])).set_index("quantity").loc[name]
    )
    return f"{found['difference']:+.3f} ± {found['standard_error']:.3f}"


def _method(model: str, pairs: str, run: ap.Run, default: ap.Run) -> list[str]:
    agreement = _agreement("", default, run)
    means = [_estimate(mean_over_heads(run, name)) for name in ("ap_overall", "ap_drop")]
    change = "–" if run.folder == default.folder else agreement[3]
    return [model, pairs, *means, change, agreement[1], agreement[5]]


def _write_tables(document: Path, tables: dict[str, str]) -> None:
    text = document.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(begin, 1)
        text = head + begin + "\n" + table + "\n\n" + end + rest.split(end, 1)[1]
    document.write_text(text, encoding="utf-8")
    print(document, file=sys.stderr)


if __name__ == "__main__":
    main()
