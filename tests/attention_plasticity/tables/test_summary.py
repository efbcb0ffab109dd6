"""What is printed about a finished run, and its advice."""

import io
import json
import math
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from scipy.stats import t

from attention_plasticity import RunnerConfig, open_dump
from attention_plasticity.demo.sample import sample_path
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.tables.finished_run import FinishedRun
from attention_plasticity.tables.intervals import mean_over_heads
from attention_plasticity.tables.summary import advice, print_summary
from helpers import report_runs
from helpers.added_tables import add_attention, add_roles
from helpers.plain_runs import edit_info, edit_table
from helpers.run_tables import add_bins, add_errors, add_windows, write_run
from qk_dump.manifest import read_manifest, write_manifest
from qk_toolkit.formatting import with_half

GROUPS = 8
DROP, POSITION = "ap_aligned_drop", "ap_aligned_drop_position"


@pytest.fixture
def over_buckets(tmp_path):
    """A run without RoPE-aligned plasticity: 3 layers of 4 heads."""
    return write_run(tmp_path / "run")


@pytest.fixture
def at_one_position(tmp_path):
    """The same with RoPE-aligned plasticity and errors."""
    return add_errors(add_bins(write_run(tmp_path / "run")), GROUPS)


def printed(folder, width=200):
    text = io.StringIO()
    console = Console(file=text, width=width, soft_wrap=True)
    print_summary(FinishedRun.open(folder), console, with_next=True)
    return text.getvalue()


def line(folder, label):
    """The line with a label, without it."""
    (found,) = [one for one in printed(folder).splitlines() if one.startswith(f"{label:<13}")]
    return found[13:]


def half(folder, name):
    """A mean with half of its 95 % interval, which is that of Student's t."""
    mean = mean_over_heads(FinishedRun.open(folder), name)
    reach = t.ppf(0.975, GROUPS - 1) * mean.standard_error
    return with_half(mean.value, reach)


def test_the_summary_holds_the_numbers_of_the_tables(over_buckets):
    text = printed(over_buckets)
    overall = FinishedRun.open(over_buckets).head_metrics["ap_overall"]
    assert f"Plasticity over a bucket {overall.mean():.3f}\n" in text
    assert "mean over 12 heads of Tiny-1B\n" in text
    assert f"{overall.max():.3f}" in text
    assert f"{overall.min():.3f}" in text
    assert "fifth" not in text  # only RoPE-aligned plasticity has fifths
    assert "±" not in text
    assert "Advice" not in text


def test_plasticity_at_one_position_comes_first(at_one_position):
    folder = edit_info(at_one_position, longest_text=8192)
    edit_info(folder, input__texts={"count": 12, "digest": None})
    lines = printed(folder).splitlines()
    overall = FinishedRun.open(folder).head_metrics["ap_overall"].mean()
    assert lines[1] == f"RoPE-aligned plasticity {half(folder, 'ap_aligned')}"
    assert lines[2] == "mean over 12 heads of Tiny-1B, 12 texts of up to 8,192 tokens"
    assert lines[4] == "±: half of the 95 % interval over texts"
    assert lines[5] == (
        f"over a bin of 256 tokens {half(folder, 'ap_pooled')}: {half(folder, 'ap_phase')} is "
        f"rotary phase; over a bucket {overall:.3f}"
    )
    first, last = (half(folder, f"ap_aligned_{name}20") for name in ("first", "last"))
    told = f"{half(folder, DROP)} over the context: first fifth {first}, last fifth {last}"
    assert line(folder, "Drop") == told


def test_extreme_heads_have_errors(at_one_position):
    heads = FinishedRun.open(at_one_position).head_metrics.sort_values("ap_aligned")
    rows = printed(at_one_position).split("heads          layer  head")[1].splitlines()[1:7]
    for row, (_, head) in zip(rows, heads.iloc[[-1, -2, -3, 2, 1, 0]].iterrows(), strict=True):
        reach = t.ppf(0.975, GROUPS - 1) * head["ap_aligned_se"]
        found = row.removeprefix("most plastic").removeprefix("least plastic").split()
        assert found[:2] == [f"{head['layer']:.0f}", f"{head['q_head']:.0f}"]
        assert re.fullmatch(r"\d+(–\d+)?", found[2])  # the interval of its rank
        assert found[3:6] == with_half(head["ap_aligned"], reach).split()
    assert rows[0].startswith("most plastic")
    assert rows[3].startswith("least plastic")


def test_significant_drops_are_counted(at_one_position):
    """By the definition of Benjamini and Hochberg, with errors that make four drops significant."""
    drops = [0.3, 0.2, -0.25, 0.28, *[0.001] * 8]
    edit_table(
        at_one_position,
        "metrics",
        lambda table: table.assign(**{POSITION: drops, f"{POSITION}_se": 0.02}),
    )
    assert (
        "             that from position differs from 0 in 4 of 12 heads (false discovery rate 5 "
        "%): 3 positive, 1 negative\n"
    ) in printed(at_one_position)
    edit_table(at_one_position, "metrics", lambda table: table.assign(**{f"{POSITION}_se": np.nan}))
    assert "false discovery" not in printed(at_one_position)


def test_position_attention_and_roles_have_a_line_each(tmp_path):
    folder = report_runs.write_run(tmp_path / "run", errors=True, position=True)
    folder = add_roles(add_attention(folder))
    run = FinishedRun.open(folder)
    assert line(folder, "Position").startswith("explains 0.")
    assert line(folder, "Position").endswith(" before RoPE")
    sinks = mean_over_heads(run, "attn_sink_mass").value
    assert line(folder, "Attention").startswith(f"sinks {sinks:.3f}, far 0.")
    assert "attended plasticity" in line(folder, "Attention")
    assert line(folder, "Roles") == "induction 6, previous 5, far 5, sink 6, mixed 6, unsure 1"


def test_what_cannot_be_measured_is_said_where_it_is_looked_for(at_one_position):
    unknown = {
        name: np.nan for column in (DROP, "attn_far_mass") for name in (column, f"{column}_se")
    }
    add_attention(at_one_position)
    edit_table(at_one_position, "metrics", lambda table: table.assign(**unknown))
    records = [missing(name, f"why {name}") for name in (DROP, "attn_far_mass")]
    edit_info(at_one_position, missing=[{**one, "heads": 12} for one in records])
    assert line(at_one_position, "Drop") == f"not measurable: why {DROP}"
    assert "far not measurable (256+ tokens): why attn_far_mass" in line(
        at_one_position, "Attention"
    )
    assert "Missing" not in printed(at_one_position)


def test_types_of_layers_have_means_of_their_own(over_buckets):
    assert "By type" not in printed(over_buckets)
    table = FinishedRun.open(add_windows(over_buckets)).head_metrics
    full = table.loc[table["layer"] == 1, "ap_overall"].mean()
    text = printed(over_buckets)
    assert f"full attention {full:.3f}; 4 heads\n" in text
    assert "By type      sliding window 0" in text


def missing(column, reason):
    columns = [column, f"{column}_se"]
    where = {"0": "0-1"}
    record = {"table": "head_metrics", "columns": columns, "reason": reason}
    return {**record, "heads": 2, "where": where}


def test_missing_values_are_told_unless_a_warning_explains_them(over_buckets):
    records = [missing("ap_aligned", "no bin"), missing("ap_phase", "no texts")]
    edit_info(over_buckets, missing=records)
    text = printed(over_buckets)
    assert "Missing      ap_aligned (2 heads): no bin.\n" in text
    assert "Missing      ap_phase (2 heads): no texts.\n" in text
    warning = {"kind": "texts_unknown", "text": "Texts are not known.", "reasons": ["no texts"]}
    text = printed(edit_info(over_buckets, warnings=[warning]))
    assert "no texts" not in text
    assert "no bin" in text


def test_a_long_failure_is_not_cut(over_buckets):
    reason = f"{'d' * 120}: cannot be read"
    failures = [{"layer": 3, "q_head": head, "k_head": 0, "reason": reason} for head in (0, 1, 4)]
    text = printed(edit_info(over_buckets, failures=failures), width=40)
    assert "3 of 15 heads failed\n" in text
    assert f"  layer 3, heads 0-1,4: {reason}\n" in text


def test_a_run_without_a_head_has_failures_alone(tmp_path):
    failure = {"layer": 0, "q_head": 0, "k_head": 0, "reason": "holds no rows"}
    heads = {"analysed": 0, "failed": 1, "not_captured": 0, "not_analysed": 0}
    content = {"tables": {}, "heads": heads, "failures": [failure]}
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert printed(tmp_path).splitlines()[1:] == [
        "1 of 1 head failed",
        "  layer 0, heads 0: holds no rows",
        f"Files        {tmp_path} (run.json)",
    ]


LAYER = 0


def test_the_median_error_and_the_texts_for_half_of_it():
    assert advice([0.010, 0.011, 0.0139, math.nan], texts=12) == (
        "standard error of a head about 0.011 with 12 texts; half of it needs about 48 texts, or "
        "four times the keys per text"
    )


def test_without_errors_or_texts_there_is_no_advice():
    assert advice([], texts=12) is None
    assert advice([math.nan], texts=12) is None
    assert advice([0.01], texts=0) is None


def errors(dump):
    """(heads,) standard errors of the heads of a layer."""
    opened, config = open_dump(dump), RunnerConfig(bin_size=512)
    found = []
    for k_head in range(3):
        q_heads = range(3 * k_head, 3 * k_head + 3)
        for result in analyze_group(opened, LAYER, k_head, q_heads, config).heads:
            found.append(result.metrics["ap_aligned_se"])
    return np.array(found)


def test_a_quarter_of_the_keys_of_every_text_doubles_the_error(tmp_path):
    thin = tmp_path / "thin"
    shutil.copytree(sample_path(), thin)
    manifest = read_manifest(thin / "dump.json")
    write_manifest(thin, manifest.model_copy(update={"capture_id": None, "rows": None}))
    rng = np.random.default_rng(0)
    for file in sorted(thin.glob(f"**/l{LAYER:02d}h*/*.parquet")):
        table = pq.read_table(file).replace_schema_metadata(None)  # no file of a capture
        of_keys = file.parent.parent == thin and file.parent.name.endswith("k")
        kept = rng.random(len(table)) < (0.25 if of_keys else 1)
        pq.write_table(table.filter(pa.array(kept)), file)
    ratio = np.linalg.norm(errors(thin)) / np.linalg.norm(errors(sample_path()))
    assert 1.5 < ratio < 2.7
