"""What is printed at the end of a run."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

from rich.console import Console

from attention_plasticity.config import make_config
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.runner import run_analysis
from attention_plasticity.tables.summary import print_summary
from dumps import make_dump


def outcome_of(dump: Path, out: Path, **fields: object) -> Outcome:
    return run_analysis(
        make_config(dataset_local_root=str(dump), output_dir=str(out), max_workers=1, **fields)
    )


def printed(outcome: Outcome, width: int = 100) -> str:
    text = io.StringIO()
    print_summary(outcome, Console(file=text, width=width, soft_wrap=True))
    return text.getvalue()


def test_the_summary_holds_the_tables_own_numbers(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=3, q_heads=4, k_heads=2, n=600)
    outcome = outcome_of(dump, tmp_path / "out")
    text = printed(outcome)
    overall = [row["ap_overall"] - row["ap_overall_bias"] for row in outcome.metrics]
    assert f"Attention plasticity {sum(overall) / 12:.3f} ± " in text
    assert "corrected for bias" in text
    assert "mean over 12 heads" in text
    assert f"{max(overall):.3f}" in text
    assert f"{min(overall):.3f}" in text
    assert text.count("80–100 %") == 1
    assert "Most plastic heads" in text
    assert "Least plastic heads" in text


def test_types_of_layers_have_means_of_their_own(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=300)
    assert "By type of layer" not in printed(outcome_of(dump, tmp_path / "one"))
    windowed = make_dump(tmp_path / "windowed", layers=2, n=300, window=256)
    for folder in windowed.glob("l01*"):
        shutil.move(folder, dump)
    lines = printed(outcome_of(dump, tmp_path / "two"), width=80).splitlines()
    (full,) = [line.split() for line in lines if "full attention" in line]
    (window,) = [line.split() for line in lines if "sliding window" in line]
    assert full[2] == window[2] == "4"
    assert full[4] == window[4] == "±"


def test_few_heads_are_listed_once(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=200)
    text = printed(outcome_of(dump, tmp_path / "out"))
    assert "Heads, most plastic first" in text
    assert "Least plastic" not in text


def test_missing_values_are_counted_not_averaged(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=60, bucket_size=2000)
    text = printed(outcome_of(dump, tmp_path / "out"))
    assert "Attention plasticity –" in text
    assert "without a value, because key pairs are missing: 4 heads" in text


def test_a_long_failure_is_not_cut(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / ("d" * 120), layers=1, n=60)
    broken = dump / "l00h00q" / "data.parquet"
    broken.write_text("spoilt")
    text = printed(outcome_of(dump, tmp_path / "out"), width=40)
    assert "1 of 4 heads failed" in text
    assert str(broken) in text


def test_small_samples_are_told_in_a_line_each(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=120, examples=3)
    text = printed(outcome_of(dump, tmp_path / "out"))
    lines = [line for line in text.splitlines() if line.startswith("Warning")]
    assert len(lines) == 2
    assert "Fewer than 32 queries in query buckets 1-7, in 4 of 4 heads" in lines[0]
    assert "Fewer than 4 texts" in lines[1]
    (tmp_path / "more").mkdir()
    enough = make_dump(tmp_path / "more", layers=1, n=2000)
    assert "Warning" not in printed(outcome_of(enough, tmp_path / "out2"))


def test_unknown_texts_are_a_note(tmp_path: Path) -> None:
    dump = make_dump(tmp_path / "dump", layers=1, n=2000)
    text = printed(outcome_of(dump, tmp_path / "out", single_example=True))
    assert "Warning" not in text
    assert "Note         Standard errors and bias are not known, nor the number of texts" in text
    assert "±" not in text


def test_heads_with_a_large_gap_are_named(tmp_path: Path) -> None:
    outcome = outcome_of(make_dump(tmp_path / "dump", layers=2, examples=8), tmp_path / "out")
    for number, row in enumerate(outcome.metrics):
        row["ap_gaussian_gap"], row["ap_gaussian_gap_se"] = (0.05 if number == 5 else 0.001), 0.001
    text = " ".join(printed(outcome).split())
    assert "differs from the count by more than 0.02 in 1 head: layer 1: 1." in text
    outcome.metrics[5]["ap_gaussian_gap_se"] = 0.04
    assert "differs from the count" not in printed(outcome)
