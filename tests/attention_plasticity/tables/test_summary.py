"""What is printed at the end of a run."""

from __future__ import annotations

import io
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from analysed import analyse_together
from attention_plasticity.run.finish import Outcome
from attention_plasticity.run.warnings import RunWarning
from attention_plasticity.tables.summary import print_summary
from dumps import add_rotary, make_dump
from lasting_workers import workers as workers  # a fixture of all tests here


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The runs of this file, by name."""
    root = tmp_path_factory.mktemp("runs")
    spoilt = make_dump(root / ("d" * 120), layers=1, n=60)
    (spoilt / "l00h00q" / "data.parquet").write_text("spoilt")
    types = make_dump(root / "types", layers=1, n=300)
    windowed = make_dump(root / "windowed", layers=2, n=300, window=256)
    for folder in windowed.glob("l01*"):
        shutil.move(folder, types)
    large = make_dump(root / "large", layers=1, n=2000)
    dumps: dict[str, tuple[Path, dict[str, Any]]] = {
        "three layers": (make_dump(root / "three", layers=3, n=600), {}),
        "one layer": (make_dump(root / "one", layers=1, n=200), {}),
        "two types": (types, {}),
        "one bucket": (make_dump(root / "bucket", layers=1, n=60, bucket_size=2000), {}),
        "spoilt": (spoilt, {}),
        "few texts": (make_dump(root / "few", layers=1, n=120, examples=3), {}),
        "large": (large, {}),
        "unknown texts": (large, {"single_example": True}),
        "eight texts": (make_dump(root / "eight", layers=2, examples=8), {}),
        "rotary": (add_rotary(make_dump(root / "rotary", layers=3, n=600, examples=8), 3), {}),
    }
    outs = root / "outs"
    found = analyse_together({outs / name: run for name, run in dumps.items()})
    return {folder.name: outcome for folder, outcome in found.items()}


def printed(outcome: Outcome, width: int = 100) -> str:
    text = io.StringIO()
    print_summary(outcome, Console(file=text, width=width, soft_wrap=True))
    return text.getvalue()


def test_the_summary_holds_the_tables_own_numbers(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["three layers"]
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


def test_plasticity_at_one_position_comes_first(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["rotary"]
    lines = printed(outcome, width=120).splitlines()
    levels = sorted(row["ap_aligned"] - row["ap_aligned_bias"] for row in outcome.metrics)
    means = {name: mean.value for name, mean in outcome.means.estimates.items()}
    assert lines[1].startswith(f"Attention plasticity {sum(levels) / 12:.3f} ± ")
    assert lines[1].endswith(" at one position")
    assert lines[2].startswith("mean over 12 heads; ")
    assert lines[3].startswith(f"over a bin of 64 tokens {means['ap_pooled']:.3f} ± ")
    assert f", of which {means['ap_phase']:.3f} ± " in lines[3]
    assert f" is rotary phase; over a bucket (ap_overall) {means['ap_overall']:.3f} ± " in lines[3]
    assert lines[4].startswith("key pairs: two keys of one text and one ")
    text = "\n".join(lines)
    assert "Profile over the context, at one position" in text
    for name in ("ap_aligned_first20", "ap_aligned_last20", "ap_aligned_drop"):
        assert f"{means[name]:.3f} ± " in text
    assert "Most plastic heads, at one position" in text
    assert f"{levels[-1]:.3f} ± " in text
    assert f"{levels[0]:.3f} ± " in text
    assert "rotary phase" in text


def test_significant_drops_are_counted(outcomes: dict[str, Outcome]) -> None:
    """By the definition of Benjamini and Hochberg, with errors that make four drops significant."""
    outcome = deepcopy(outcomes["rotary"])
    drops = [0.3, 0.2, -0.25, 0.28, *[0.001] * 8]
    for row, drop in zip(outcome.metrics, drops, strict=True):
        row |= {"ap_aligned_drop": drop, "ap_aligned_drop_bias": 0.0, "ap_aligned_drop_se": 0.02}
    assert (
        "the drop differs from 0 in 4 of 12 heads (false discovery rate 5 %): 3 lower in the last "
        "fifth, 1 higher"
    ) in printed(outcome, width=200)
    for row in outcome.metrics:
        row["ap_aligned_drop_se"] = float("nan")
    assert "false discovery" not in printed(outcome, width=200)


def test_the_next_commands_are_named(outcomes: dict[str, Outcome]) -> None:
    place = outcomes["rotary"].paths.place
    lines = printed(outcomes["rotary"], width=400).splitlines()
    assert lines[-2].endswith(f"attention-plasticity report {place}")
    assert lines[-1].endswith(f"attention-plasticity plot all {place}")


def test_attended_plasticity_at_one_position_comes_first(outcomes: dict[str, Outcome]) -> None:
    outcome = deepcopy(outcomes["rotary"])
    means = outcome.means.estimates
    means["ap_attended"], means["ap_attended_aligned"] = means["ap_pooled"], means["ap_aligned"]
    line = next(line for line in printed(outcome).splitlines() if "proportion" in line)
    aligned, pooled = means["ap_aligned"], means["ap_pooled"]
    assert line == (
        "Plasticity of keys in proportion to their attention, at one position: "
        f"{aligned.value:.3f} ± {aligned.standard_error:.3f}; mean over 12 heads; over a bin "
        f"{pooled.value:.3f} ± {pooled.standard_error:.3f}"
    )


def test_without_rotary_records_plasticity_is_over_a_bucket(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["three layers"], width=200)
    assert " over a bucket\n" in text
    assert "Profile over the context, over a bucket" in text
    assert "Note         Plasticity at one position is not known in 12 of 12 heads: " in text
    assert "attention-plasticity add-rotary DUMP --model.name MODEL" in text


def test_types_of_layers_have_means_of_their_own(outcomes: dict[str, Outcome]) -> None:
    assert "By type of layer" not in printed(outcomes["one layer"])
    lines = printed(outcomes["two types"], width=80).splitlines()
    (full,) = [line.split() for line in lines if "full attention" in line]
    (window,) = [line.split() for line in lines if "sliding window" in line]
    assert full[2] == window[2] == "4"
    assert full[4] == window[4] == "±"


def test_few_heads_are_listed_once(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["one layer"])
    assert "Heads, most plastic first" in text
    assert "Least plastic" not in text


def test_missing_values_are_counted_not_averaged(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["one bucket"])
    assert "Attention plasticity –" in text
    (line,) = [line for line in text.splitlines() if line.startswith("Missing      ap_overall")]
    assert line.startswith("Missing      ap_overall (4 heads), ap_first20 (4 heads), ")
    assert line.endswith(" more: no query bucket except bucket 0 has two queries.")


def test_a_long_failure_is_not_cut(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["spoilt"], width=40)
    assert "1 of 4 heads failed" in text
    assert str(Path("d" * 120, "l00h00q", "data.parquet")) in text


def test_small_samples_are_told_in_a_line_each(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["few texts"])
    lines = [line for line in text.splitlines() if line.startswith("Warning")]
    assert len(lines) == 2
    assert "Fewer than 32 queries in query buckets 1-7, in 4 of 4 heads" in lines[0]
    assert "Fewer than 4 texts" in lines[1]
    assert "Warning" not in printed(outcomes["large"])


def test_unknown_texts_are_a_note(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["unknown texts"])
    assert "Warning" not in text
    assert "Note         Standard errors and bias are not known, nor the numbers of texts" in text
    assert "±" not in text


def test_heads_with_a_large_gap_are_named(outcomes: dict[str, Outcome]) -> None:
    outcome = deepcopy(outcomes["eight texts"])
    for number, row in enumerate(outcome.metrics):
        row["ap_gaussian_gap"], row["ap_gaussian_gap_se"] = (0.05 if number == 5 else 0.001), 0.001
    text = " ".join(printed(outcome).split())
    assert "differs from the count by more than 0.02, over a bucket, in 1 head: layer 1: 1." in text
    outcome.metrics[5]["ap_gaussian_gap_se"] = 0.04
    assert "differs from the count" not in printed(outcome)


def test_a_large_bias_is_told_if_the_values_are_not_corrected(outcomes: dict[str, Outcome]) -> None:
    large = RunWarning("large_bias", "The bias is large.", 1, [], None)
    for name, told in (("large", False), ("unknown texts", True)):
        outcome = replace(outcomes[name], warnings=[large])
        text = printed(outcome)
        assert ("Warning      The bias is large." in text) is told
        assert ("corrected for bias" in text) is not told
