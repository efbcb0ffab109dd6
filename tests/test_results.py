"""The results in results/smollm2-135m, and the pages that describe them."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

import attention_plasticity as ap
from attention_plasticity.figures.registry import file_names, left_out
from attention_plasticity.tables.intervals import mean_half_width, mean_over_heads
from commands_here import run_here

ROOT = Path(__file__).parents[1]
RUN = ROOT / "results" / "smollm2-135m"
FINDINGS, PLASTICITY = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("findings-smollm2", "plasticity")
)


def test_the_run_is_whole():
    run = ap.open_run(RUN)
    assert len(run.head_metrics) == 270  # reading compares every table with its hash
    assert len(run.component_weights) == 270 * 64
    assert run.bucket_plasticity["plasticity"].between(0, 1).all()
    assert run.table("bins")["plasticity"].between(-0.05, 1.05).all()  # without its bias
    assert run.info["heads"] == {
        "analysed": 270,
        "not_analysed": 0,
        "not_captured": 0,
        "failed": 0,
    }
    assert not re.search(r'"/(home|tmp|root|work)', (RUN / "run.json").read_text())
    drawn = [name for name in file_names() if name not in left_out(run)]
    named = re.findall(r"`([\w-]+)\.png`", (RUN / "README.md").read_text(encoding="utf-8"))
    for name in (*drawn, *named):
        assert (RUN / "figures" / f"{name}.png").is_file(), name


def test_the_page_tells_the_tables_numbers():
    run = ap.open_run(RUN)
    drops = [_cell(run, f"ap_aligned_drop{part}") for part in ("", "_position", "_distance")]
    level, *others = (_cell(run, name) for name in ("ap_aligned", "ap_phase", "ap_overall"))
    assert f"| moby-dick-8192 | {' | '.join([level, *drops, *others])} |" in FINDINGS


def test_the_drop_is_distance_also_in_the_count():
    """The main statement about the context, from the published tables."""
    run = ap.open_run(RUN)
    counts = pd.read_csv(RUN / "head_counts.csv")
    for part, low, high in (("position", -0.012, 0.004), ("distance", 0.033, 0.045)):
        assert low < mean_over_heads(run, f"ap_aligned_drop_{part}").value < high
        assert low < counts[f"drop_{part}"].mean() < high


def test_sure_induction_heads_keep_everything_in_every_order(tmp_path):
    """Also in an order by far attention, of which they have little."""
    run = ap.open_run(RUN)
    roles = run.table("roles").query("role == 'induction'")
    places = {(layer, head) for layer, head in zip(roles["layer"], roles["k_head"], strict=True)}
    assert {(17, 1), (18, 2)} <= places
    for order in ("far_mass", "aligned_plasticity"):
        out = tmp_path / order
        words = ("export", RUN, out, "--to", "duo", "--share", 0.5, "--order", order)
        assert run_here(*words).returncode == 0
        gates = np.loadtxt(out / "full_attention_heads.tsv")
        assert all(gates[place] == 1 for place in places)
        assert gates.sum() == 45


def _cell(run, name):
    """A mean over heads with half of its 95 % interval; plasticity over a bucket has none."""
    mean = mean_over_heads(run, name)
    half = "" if name == "ap_overall" else f" ± {mean_half_width(mean):.3f}"
    return f"{mean.value:.3f}{half}"


def test_the_count_is_nearer_to_one_position():
    """The main statement of docs/plasticity.md, from the published tables."""
    run = ap.open_run(RUN)
    heads = ["layer", "q_head"]
    counts = pd.read_csv(RUN / "head_counts.csv").set_index(heads)["one_position"]
    metrics = run.head_metrics.set_index(heads)
    for name, low, high in (("ap_aligned", 0.98, 1.0), ("ap_overall", -0.2, 0.2)):
        values = metrics[name].reindex(counts.index)
        rho = values.corr(counts, method="spearman")
        assert low <= rho <= high
        assert f"| `{name}` | {values.mean():.3f} | {rho:.3f} |" in PLASTICITY
    assert f"| {counts.mean():.3f} | – |" in PLASTICITY


def test_the_page_has_the_mean_attended_plasticity():
    assert f"| {_cell(ap.open_run(RUN), 'ap_attended')} |" in FINDINGS
