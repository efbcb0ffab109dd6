"""What is printed at the end of a run."""

from __future__ import annotations

import io
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import t

from analysed import analyse_together
from attention_plasticity.run.finish import Outcome
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
    overall = [row["ap_overall"] for row in outcome.metrics]
    assert f"Attention plasticity {sum(overall) / 12:.3f} over a bucket\n" in text
    assert "mean over 12 heads" in text
    assert f"{max(overall):.3f}" in text
    assert f"{min(overall):.3f}" in text
    assert "fifth" not in text  # only plasticity at one position has fifths
    assert "Most plastic heads" in text
    assert "Least plastic heads" in text


def half(outcome: Outcome, name: str) -> str:
    """A mean with half of its 95 % interval, which is that of Student's t."""
    mean = outcome.means.estimates[name]
    reach = t.ppf(0.975, mean.groups - 1) * mean.standard_error
    return f"{mean.value:.3f} ± {reach:.3f}"


def test_plasticity_at_one_position_comes_first(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["rotary"]
    lines = printed(outcome, width=120).splitlines()
    overall = outcome.means.estimates["ap_overall"].value
    assert lines[1] == f"Attention plasticity {half(outcome, 'ap_aligned')} at one position"
    assert lines[2].startswith("mean over 12 heads; ")
    assert lines[3] == (
        f"over a bin of 64 tokens {half(outcome, 'ap_pooled')}, of which "
        f"{half(outcome, 'ap_phase')} is rotary phase; over a bucket (ap_overall) {overall:.3f}"
    )
    assert lines[4].startswith("key pairs: two keys of one text and one bin of keys")
    assert lines[5] == "± is half of the 95 % interval over texts"
    text = "\n".join(lines)
    first, last = (half(outcome, f"ap_aligned_{name}20") for name in ("first", "last"))
    assert (
        f"Drop over the context {half(outcome, 'ap_aligned_drop')}: first fifth {first}, last "
        f"fifth {last} of the longest text; mean over 12 heads"
    ) in text
    assert "Most plastic heads, at one position" in text
    best = max(outcome.metrics, key=lambda row: row["ap_aligned"])
    reach = t.ppf(0.975, best["n_text_groups"] - 1) * best["ap_aligned_se"]
    assert f"{best['ap_aligned']:.3f} ± {reach:.3f}" in text
    assert "rotary phase" in text


def test_the_error_of_the_mean_comes_with_advice(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["rotary"]
    level = outcome.means.estimates["ap_aligned"]
    error = half(outcome, "ap_aligned").partition(" ")[2]
    keys = sum(row["n_k_tokens"] for row in outcome.metrics) / len(outcome.metrics)
    told = f"error of the mean {error} from 8 groups of texts and {keys:,.0f} keys per head; "
    assert f"{told}about 4 times as many texts halve it\n" in printed(outcome, width=200)
    facts = replace(outcome.facts, input={**outcome.facts.input, "texts": {"count": 40}})
    named = printed(replace(outcome, facts=facts), width=200)
    assert f"error of the mean {error} from 40 texts and " in named
    sampled = deepcopy(outcome)
    sampled.means.estimates["ap_aligned"] = replace(level, eligible=90, head_variance=1.0)
    assert "the choice of heads: capture more heads" in printed(sampled, width=200)
    assert "error of the mean" not in printed(outcomes["three layers"])


def test_significant_drops_are_counted(outcomes: dict[str, Outcome]) -> None:
    """By the definition of Benjamini and Hochberg, with errors that make four drops significant."""
    outcome = deepcopy(outcomes["rotary"])
    drops = [0.3, 0.2, -0.25, 0.28, *[0.001] * 8]
    for row, drop in zip(outcome.metrics, drops, strict=True):
        row |= {"ap_aligned_drop": drop, "ap_aligned_drop_se": 0.02}
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


def test_attended_plasticity_is_told(outcomes: dict[str, Outcome]) -> None:
    outcome = deepcopy(outcomes["rotary"])
    outcome.means.estimates["ap_attended"] = outcome.means.estimates["ap_aligned"]
    line = next(line for line in printed(outcome).splitlines() if "proportion" in line)
    assert line == (
        "Plasticity of keys in proportion to their attention, at one position: "
        f"{half(outcome, 'ap_attended')}; mean over 12 heads"
    )


def test_without_rotary_records_plasticity_is_over_a_bucket(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["three layers"], width=200)
    assert " over a bucket\n" in text
    assert "±" not in text
    assert "Note         Plasticity at one position is not known in 12 of 12 heads: " in text
    assert "attention-plasticity add-rotary DUMP --model.name MODEL" in text


def test_types_of_layers_have_means_of_their_own(outcomes: dict[str, Outcome]) -> None:
    assert "By type of layer" not in printed(outcomes["one layer"])
    lines = printed(outcomes["two types"], width=80).splitlines()
    (full,) = [line.split() for line in lines if "full attention" in line]
    (window,) = [line.split() for line in lines if "sliding window" in line]
    assert full[2] == window[2] == "4"
    assert full[4] == window[4] == "–"  # plasticity over a bucket has no drop


def test_roles_are_counted_by_one_rule(outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "role": ["previous", "unsure", "unsure", "unsure"],
            "likely_role": ["previous", "sink", "mixed", "previous"],
            "repeated_induction": np.nan,
        }
    )
    table.to_csv(tmp_path / "head_roles.csv", index=False)
    outcome = outcomes["one layer"]
    paths = replace(
        outcome.paths, tables={**outcome.paths.tables, "roles": tmp_path / "head_roles.csv"}
    )
    text = printed(replace(outcome, roles={"previous": 1, "unsure": 3}, paths=paths))
    assert "Roles of heads: previous 1, unsure 3 (head_roles.csv)\n" in text
    assert "unsure: repeated tokens decide in 2 heads; give a dump of them with --repeated" in text
    table.assign(repeated_induction=0.1).to_csv(tmp_path / "head_roles.csv", index=False)
    again = replace(outcome, roles={"previous": 1, "unsure": 3}, paths=paths)
    assert "repeated tokens decide" not in printed(again)


def test_few_heads_are_listed_once(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["one layer"])
    assert "Heads, most plastic first" in text
    assert "Least plastic" not in text


def test_missing_values_are_counted_not_averaged(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["one bucket"])
    assert "Attention plasticity –" in text
    (line,) = [line for line in text.splitlines() if line.startswith("Missing      ap_overall")]
    assert line.startswith("Missing      ap_overall (4 heads)")
    assert line.endswith(": no query bucket except bucket 0 has two queries.")


def test_a_long_failure_is_not_cut(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["spoilt"], width=40)
    assert "1 of 4 heads failed" in text
    assert str(Path("d" * 120, "l00h00q", "data.parquet")) in text


def test_small_samples_are_told_in_a_line_each(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["few texts"])
    lines = [line for line in text.splitlines() if line.startswith("Warning")]
    assert "Fewer than 32 queries in query buckets 1-7, in 4 of 4 heads" in lines[0]
    assert any("texts" in line for line in lines[1:])
    assert "Warning" not in printed(outcomes["large"])


def test_unknown_texts_are_a_note(outcomes: dict[str, Outcome]) -> None:
    text = printed(outcomes["unknown texts"])
    assert "Warning" not in text
    assert "Note         Standard errors " in text
    assert "±" not in text
