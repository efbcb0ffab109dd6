"""Make every number and figure of docs/findings-smollm2.md from the model weights: `make findings`.

Captures and analyses are kept in one folder, so that an interrupted run can be continued. Tables
are written between the markers of the document. The default run and its figures are written to
results/smollm2-135m.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

import attention_plasticity as ap
from attention_plasticity.compare.runs import compare_runs
from attention_plasticity.compare.text import as_markdown
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
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.profiles import head_profiles, mean_profile

FOLDER = Path("demo-smollm2")
RESULTS = Path("results/smollm2-135m")
DOCUMENT = Path("docs/findings-smollm2.md")
BASE = "moby-dick-8192"
CAPTURES = {
    BASE: ("moby-dick", 8192, 12),
    "moby-dick-2048": ("moby-dick", 2048, 12),
    "moby-dick-16384": ("moby-dick", 16384, 4),
    "jargon-file-8192": ("jargon-file", 8192, 6),
}
METHODS = [
    (model, pairs) for model in ("positional", "full", "diagonal") for pairs in ("bucket", "local")
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
    tables = dict(_tables(runs))
    _write_tables(tables)


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
            axes.plot(mean["q_position"], mean["plasticity"], color=colour, label=label)
        plasticity_axis(axes)
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
        footnote(figure, "mean over 270 heads; band: half of them")
    save_figure(figure, RESULTS / "figures" / "beyond.png")


def _tables(runs: dict[str, ap.Run]) -> Iterator[tuple[str, str]]:
    origin = json.loads(next((FOLDER / "model").glob("*/origin.json")).read_text())
    yield (
        "perplexity",
        _markdown(
            ["text", "perplexity"],
            [
                ["a held-out passage of Moby-Dick, 1,024 tokens", f"{origin['perplexity']:.1f}"],
                ["the same tokens in random order", f"{origin['perplexity_shuffled']:,.0f}"],
            ],
        ),
    )
    opened = [FinishedRun.open(runs[name].folder) for name in CAPTURES]
    yield "levels", as_markdown(compare_runs(opened, list(CAPTURES))).rstrip()
    yield "heads", _extreme_heads(runs[BASE].head_metrics)
    yield "layers", _layers(runs[BASE].head_metrics)
    yield "drops", _drops(runs[BASE].head_metrics)
    yield "gaussian", _gaussian(runs[BASE].head_metrics)
    yield "position", _position(runs[BASE].head_metrics)
    yield "beyond", _beyond(runs["moby-dick-16384"].bucket_plasticity)
    others = ["another seed", "jargon-file-8192", "moby-dick-2048", "moby-dick-16384"]
    rows = [
        _agreement("six of the texts against the other six", runs["even-texts"], runs["odd-texts"])
    ]
    rows += [_agreement(f"{BASE} against {name}", runs[BASE], runs[name]) for name in others]
    heading = [
        "runs",
        "ρ of plasticity",
        "ρ of drop",
        "mean difference",
        "mean absolute difference",
    ]
    yield "stability", _markdown(heading, rows)
    default = runs["positional-bucket"]
    rows = [_method(f"`{m}`", f"`{p}`", runs[f"{m}-{p}"], default) for m, p in METHODS]
    heading = [
        "query model",
        "pairs",
        "plasticity",
        "drop",
        "ρ with the default",
        "mean absolute difference",
    ]
    yield "methods", _markdown(heading, rows)


def _extreme_heads(metrics: pd.DataFrame) -> str:
    ordered = metrics.sort_values("ap_overall", ascending=False)
    columns = ["layer", "q_head", "ap_overall", "ap_drop", "q_R2_total"]
    extremes = pd.concat([ordered.head(5), ordered.tail(5)])[columns].to_numpy()
    rows = [[f"{row[0]:.0f}.{row[1]:.0f}", *(f"{v:.3f}" for v in row[2:])] for row in extremes]
    return _markdown(["head (layer.head)", "plasticity", "drop", "variance from position"], rows)


def _layers(metrics: pd.DataFrame) -> str:
    rows = []
    for first in range(0, 30, 5):
        members = metrics[metrics["layer"].between(first, first + 4)]
        name = f"{first}–{first + 4}"
        values = [members[column].mean() for column in ("ap_overall", "ap_drop", "q_R2_total")]
        spread = members["ap_overall"].std()
        rows.append([name, f"{values[0]:.3f} ± {spread:.3f}", *(f"{v:.3f}" for v in values[1:])])
    heading = ["layers", "plasticity (± spread over heads)", "drop", "variance from position"]
    return _markdown(heading, rows)


def _drops(metrics: pd.DataFrame) -> str:
    drop = metrics["ap_drop"]
    kinds = {
        "lower at the end than at the beginning": drop > 0,
        "lower by more than 0.05": drop > 0.05,
        "higher by more than 0.05": drop < -0.05,
    }
    return _markdown(
        ["plasticity is …", "heads"], [[k, str(int(v.sum()))] for k, v in kinds.items()]
    )


def _gaussian(metrics: pd.DataFrame) -> str:
    names = {
        "share of dimensions with Kolmogorov–Smirnov p below 0.01": "q_noise_frac_ks_p_lt_alpha",
        "median absolute skewness": "q_noise_med_abs_skew",
        "median absolute excess kurtosis": "q_noise_med_abs_kurt",
    }
    rows = [[label, f"{metrics[name].mean():.2f}"] for label, name in names.items()]
    return _markdown(["residuals after the regression on position", "mean over heads"], rows)


def _position(metrics: pd.DataFrame) -> str:
    pairs = [
        ("variance from position", "q_R2_total", "plasticity", "ap_overall"),
        ("variance from position", "q_R2_total", "drop", "ap_drop"),
        ("R² of log position", "q_R2_scalar", "plasticity", "ap_overall"),
        ("layer", "layer", "plasticity", "ap_overall"),
    ]
    rows = [
        [one, other, f"{metrics[a].corr(metrics[b], method='spearman'):.2f}"]
        for one, a, other, b in pairs
    ]
    return _markdown(["quantity", "correlated with", "Spearman's ρ over 270 heads"], rows)


def _beyond(buckets: pd.DataFrame) -> str:
    profiles = head_profiles(buckets)
    edges = [0, 2048, 4096, 8192, 12288, 16384]
    means = {}
    for low, high in pairwise(edges):
        inside = profiles[(profiles["q_position"] >= low) & (profiles["q_position"] < high)]
        means[low, high] = inside.groupby(["layer", "q_head"])["plasticity"].mean()
    last = means[4096, 8192]
    rows = []
    for (low, high), values in means.items():
        lower = f"{int((values < last).sum())} of {len(values)}"
        cells = [f"{values.mean():.3f}", f"{values.std():.3f}", "–" if low == 4096 else lower]
        rows.append([f"{low:,}–{high:,}", *cells])
    heading = ["query position", "plasticity", "spread over heads"]
    return _markdown([*heading, "heads lower than at 4,096–8,192"], rows)


def _agreement(name: str, one: ap.Run, other: ap.Run) -> list[str]:
    both = one.head_metrics.merge(other.head_metrics, on=["layer", "q_head"])
    change = both["ap_overall_y"] - both["ap_overall_x"]
    return [
        name,
        f"{both['ap_overall_x'].corr(both['ap_overall_y'], method='spearman'):.3f}",
        f"{both['ap_drop_x'].corr(both['ap_drop_y'], method='spearman'):.3f}",
        f"{change.mean():+.3f}",
        f"{change.abs().mean():.3f}",
    ]


def _method(model: str, pairs: str, run: ap.Run, default: ap.Run) -> list[str]:
    agreement = _agreement("", default, run)
    metrics = run.head_metrics
    level, drop = metrics["ap_overall"].mean(), metrics["ap_drop"].mean()
    return [model, pairs, f"{level:.3f}", f"{drop:+.3f}", agreement[1], agreement[4]]


def _markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _write_tables(tables: dict[str, str]) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(begin, 1)
        text = head + begin + "\n" + table + "\n\n" + end + rest.split(end, 1)[1]
    DOCUMENT.write_text(text, encoding="utf-8")
    print(DOCUMENT, file=sys.stderr)


if __name__ == "__main__":
    main()
