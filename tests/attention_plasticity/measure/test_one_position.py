"""Plasticity at one position: against counts at one position, and laws."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attention_plasticity as ap
from attention_plasticity.measure import grid
from attention_plasticity.measure.plasticity import COLUMNS
from attention_plasticity.read.layer import NO_CHUNK_SIZE
from dumps import head_rows
from head_pairs import analyze, without_rope, write_pair
from one_position import counted_at_one_position, tapped_dump
from qk_dump.manifest import DumpManifest
from reference_checks import assert_reasons_are_complete, influences_of

ALIGNED = ("ap_aligned", "ap_aligned_drop", "ap_pooled", "ap_phase")
WITH_ERRORS = [column for name in ALIGNED for column in (name, f"{name}_se")]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> ap.Dump:
    """Every position of 16 texts, in two layers."""
    return tapped_dump(tmp_path_factory.mktemp("all"), "llama", [1, 2])


@pytest.mark.parametrize(
    ("model_type", "layers", "sampling"),
    [
        ("llama", [2], "bucket"),  # halves
        ("llama", [1], "context"),
        ("llama", [1], "local"),
        ("glm", [2], "bucket"),  # interleaved, half of the dimensions
        ("stablelm", [2], "bucket"),  # halves, half of the dimensions
        ("smollm3", [3], "bucket"),  # no rotary embedding
    ],
)
def test_it_is_what_queries_of_one_position_count(
    tmp_path: Path, model_type: str, layers: list[int], sampling: str
) -> None:
    dump = tapped_dump(tmp_path / "dump", model_type, layers)
    config = ap.make_config(num_pairs_per_bin=96, pair_sampling=sampling)
    found, counts, counted, overall = [], [], [], []
    for layer, q_head in dump.query_heads:
        result = ap.analyze_head(layer, q_head, dump=dump, config=config)
        row = result.metrics
        found.append(row["ap_aligned"])
        counts.append(row["ap_aligned_counted"])
        overall.append(row["ap_overall"])
        counted.append(counted_at_one_position(dump, layer, q_head, result.k_head, config))
        if model_type == "smollm3":
            assert row["ap_phase"] == row["ap_phase_se"] == 0
    for values in (found, counts):
        differences = np.abs(np.subtract(values, counted))
        assert differences.mean() <= 0.01
        assert differences.max() <= 0.05
    if model_type == "llama":
        assert np.abs(np.subtract(overall, counted)).mean() > 0.1


def test_vectors_before_rope_give_the_same(tmp_path: Path, everything: ap.Dump) -> None:
    before = tapped_dump(tmp_path / "dump", "llama", [1], pre_rope=True)
    left, right = (ap.analyze_head(1, 2, dump=dump).metrics for dump in (before, everything))
    for column in WITH_ERRORS:
        assert left[column] == pytest.approx(right[column], rel=1e-3, abs=1e-5), column


def test_many_queries_of_a_bin_are_spread_over_its_texts(
    everything: ap.Dump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the queries gives the same value; each text has the same number of them."""
    config = ap.make_config(bin_size=64)
    every = ap.analyze_head(1, 0, dump=everything, config=config)
    monkeypatch.setattr(grid, "MOST_QUERIES", 256)
    some = ap.analyze_head(1, 0, dump=everything, config=config)
    assert set(some.tables["bins"]["n_queries"]) == {16 * 64}  # all that the bin has
    difference = some.metrics["ap_aligned"] - every.metrics["ap_aligned"]
    assert 0 < abs(difference) < some.metrics["ap_aligned_se"]


def test_without_a_record_or_the_size_of_chunks_there_is_a_reason(everything: ap.Dump) -> None:
    assert everything.manifest is not None
    entries = [dict(entry, rotary=None) for entry in everything.manifest.layers or []]
    facts = everything.manifest.model_dump() | {"layers": entries}
    without = replace(everything, manifest=DumpManifest.model_validate(facts))
    result = ap.analyze_head(1, 0, dump=without)
    assert np.isnan(result.metrics["ap_aligned"])
    for name in (*COLUMNS, "ap_attended"):
        assert "attention-plasticity add-rotary DUMP" in result.missing["head_metrics"][name]
    assert "bins" not in result.tables
    chunked = [dict(entry, type="chunked_attention") for entry in everything.manifest.layers or []]
    facts = everything.manifest.model_dump() | {"layers": chunked}
    no_size = replace(everything, manifest=DumpManifest.model_validate(facts))
    missing = ap.analyze_head(1, 0, dump=no_size).missing["head_metrics"]
    assert missing["ap_aligned"] == NO_CHUNK_SIZE


SIMILAR = (1000, 1010, 1024, 985, 1040, 990)  # tokens; two of these texts reach the bin from 1,024


def texts_of_lengths(lengths: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    rows = head_rows(n=900, d=4, examples=len(lengths), context=1, seed=seed)
    rng = np.random.default_rng(seed)
    rows["position"] = (rng.random(900) * np.array(lengths)[rows["example_id"]]).astype(int)
    for text, length in enumerate(lengths):  # two queries of every text at its end
        rows["position"][np.flatnonzero(rows["example_id"] == text)[:2]] = length - 1, length - 2
    return rows | {"bucket": rows["position"] // 128}


def test_a_last_bin_of_few_texts_takes_no_part(tmp_path: Path) -> None:
    """Texts have similar lengths, and few of them reach the last bin."""
    heads = [texts_of_lengths(SIMILAR, seed) for seed in (1, 2)]
    root = without_rope(write_pair(tmp_path, *heads))
    how = {"bin_size": 128, "num_pairs_per_bin": 10**5}  # all pairs
    result = analyze(root, **how)
    bins = result.tables["bins"]
    few = [n for n, number in enumerate(bins["q_bin"]) if number == 8]
    assert {bins["n_texts"][n] for n in few} == {1}
    for name in ("plasticity", "plasticity_se", "pooled", "pooled_se"):
        known = np.isfinite(bins[name])
        assert not known[few].any()
        assert known.sum() == len(known) - len(few)
    row = influences_of(result)["ap_bin", 8]
    assert math.isnan(row["value"])
    values = [influences_of(result)["ap_bin", number]["value"] for number in range(1, 8)]
    assert min(values) <= result.metrics["ap_aligned"] <= max(values)
    early = {name: column[heads[0]["position"] < 1024] for name, column in heads[0].items()}
    without = analyze(without_rope(write_pair(tmp_path / "cut", early, heads[1])), **how)
    for name in ("ap_aligned", "ap_aligned_se", "ap_pooled"):
        assert result.metrics[name] == pytest.approx(without.metrics[name], rel=1e-5)
    assert_reasons_are_complete(result)


@pytest.mark.parametrize("texts", [1, 2, 3])
def test_a_dump_of_few_texts_has_values_without_errors(tmp_path: Path, texts: int) -> None:
    heads = [texts_of_lengths((1024,) * texts, seed) for seed in (1, 2)]
    result = analyze(without_rope(write_pair(tmp_path, *heads)), bin_size=128)
    for name in (*COLUMNS, "q_R2_unrotated"):
        counted = name == "ap_aligned_counted" and texts == 1  # needs queries of two texts
        assert math.isnan(result.metrics[name]) == counted
        assert math.isnan(result.metrics[f"{name}_se"])
    assert np.isfinite(result.tables["bins"]["plasticity"]).all()
    assert_reasons_are_complete(result)
