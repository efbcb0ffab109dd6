"""Plasticity at one position: which queries, bins and texts take part.

`test_leave_one_out.py` compares its values with a slow reference, `test_counts.py` with counts.
"""

import math

import numpy as np
import pytest

from attention_plasticity.measure import grid
from attention_plasticity.measure.plasticity import COLUMNS, SHORT_CONTEXT
from attention_plasticity.read.layer import NO_CHUNK_SIZE
from dumps import head_rows
from head_pairs import analyze, without_rope, write_pair
from helpers.attention_dumps import Layer, make_attention_dump
from reference_checks import assert_reasons_are_complete, influences_of


def write_dump(root, **facts):
    entry = Layer().entry(0) | {"rope": True, "rotary": {"frequencies": [1.0, 0.1]}} | facts
    return make_attention_dump(root, texts=16, manifest={"layers": [entry]})


def test_many_queries_of_a_bin_are_spread_over_its_texts(tmp_path, monkeypatch):
    """A quarter of the queries gives the same value; each text has the same number of them."""
    root = write_dump(tmp_path)
    every = analyze(root, bin_size=16)
    monkeypatch.setattr(grid, "MOST_QUERIES", 64)
    some = analyze(root, bin_size=16)
    assert set(some.tables["bins"]["n_queries"]) == {16 * 16}  # all that the bin has
    difference = some.metrics["ap_aligned"] - every.metrics["ap_aligned"]
    assert 0 < abs(difference) < some.metrics["ap_aligned_se"]


def test_without_a_record_or_the_size_of_chunks_there_is_a_reason(tmp_path):
    known = analyze(write_dump(tmp_path, scale=0.4)).metrics
    result = analyze(write_dump(tmp_path, rotary=None))
    assert np.isnan(result.metrics["ap_aligned"])
    for name in {*COLUMNS, "ap_attended"} - {"ap_pooled"}:
        assert "attention-plasticity add-rotary DUMP" in result.missing["head_metrics"][name]
    assert "bins" not in result.tables
    for name in ("ap_pooled", "ap_pooled_se"):  # nothing is rotated for it
        assert result.metrics[name] == known[name] > 0
    influences = influences_of(result)["ap_pooled", None]
    assert influences["value"] == known["ap_pooled"]
    missing = analyze(write_dump(tmp_path, type="chunked_attention")).missing["head_metrics"]
    assert missing["ap_aligned"] == NO_CHUNK_SIZE


def test_a_fifth_of_few_tokens_gives_no_drop(tmp_path):
    """In texts of 20 tokens the first fifth is the first four tokens."""
    entry = Layer().entry(0) | {"rope": True, "rotary": {"frequencies": [1.0, 0.1]}}
    for length in (20, 39, 40):
        root = make_attention_dump(
            tmp_path / f"{length}", texts=16, length=length, manifest={"layers": [entry]}
        )
        found = analyze(root)
        assert math.isfinite(found.metrics["ap_aligned_first20"])
        known = length == 40
        for name in ("ap_aligned_drop", "ap_aligned_drop_se"):
            assert math.isfinite(found.metrics[name]) == known
            assert found.missing["head_metrics"].get(name) == (None if known else SHORT_CONTEXT)


SIMILAR = (1000, 1010, 1024, 985, 1040, 990)  # tokens; two of these texts reach the bin from 1,024


def texts_of_lengths(lengths, seed):
    rows = head_rows(n=900, d=4, examples=len(lengths), context=1, seed=seed)
    rng = np.random.default_rng(seed)
    for text, length in enumerate(lengths):  # every text's last two tokens are among its rows
        own = np.flatnonzero(rows["example_id"] == text)
        early = rng.choice(length - 2, size=len(own) - 2, replace=False)
        rows["position"][own] = [length - 1, length - 2, *early]
    return rows | {"bucket": rows["position"] // 128}


def test_a_last_bin_of_few_texts_takes_no_part(tmp_path):
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
def test_a_dump_of_few_texts_has_values_without_errors(tmp_path, texts):
    heads = [texts_of_lengths((1024,) * texts, seed) for seed in (1, 2)]
    result = analyze(without_rope(write_pair(tmp_path, *heads)), bin_size=128)
    for name in (*COLUMNS, "q_R2_unrotated"):
        counted = name == "ap_aligned_counted" and texts == 1  # needs queries of two texts
        assert math.isnan(result.metrics[name]) == counted
        assert math.isnan(result.metrics[f"{name}_se"])
    assert np.isfinite(result.tables["bins"]["plasticity"]).all()
    assert_reasons_are_complete(result)
