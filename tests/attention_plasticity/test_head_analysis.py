"""One head from its files to its rows: against the slow reference, on bad and on tiny input."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attention_plasticity import DumpError, analyze_head, make_config, open_dump
from attention_plasticity.head_analysis import analyze_group
from attention_plasticity.measure import seed_scores
from dumps import head_rows, make_dump
from head_pairs import analyze, small_head, write_pair
from helpers.attention_dumps import Layer, make_attention_dump
from qk_dump.manifest import DumpManifest, write_manifest
from reference import analyse, write_rows
from reference_checks import assert_equals_reference


@pytest.mark.parametrize("layer", [Layer(), Layer(window=14)], ids=["full", "window"])
def test_a_head_does_not_depend_on_the_heads_it_is_analysed_with(tmp_path, layer):
    """In any order, in any number, or alone; queries at other places draw pairs of their own."""
    entry = layer.entry(0) | {"rope": True, "rotary": {"frequencies": [1.0, 0.1]}}
    how = {"texts": 5, "q_heads": 3, "received": True, "share": 0.8, "layer": layer}
    root = make_attention_dump(tmp_path, **how, manifest={"layers": [entry]})
    dump, config = open_dump(root), make_config(bin_size=16)
    alone = [analyze_head(0, head, 0, dump, config) for head in range(3)]
    for heads in ((0, 1, 2), (2, 0), (1, 2, 0)):
        together = analyze_group(dump, 0, 0, heads, config)
        expected = [alone[head] for head in sorted(heads)]
        assert list(map(repr, together.heads)) == list(map(repr, expected))  # with NaN
        assert together.key_head.values["n_q_heads"] == len(heads)


@pytest.mark.parametrize("chunk", [128, 300])
def test_in_chunks_only_keys_of_the_chunk_of_a_query_are_used(tmp_path, chunk):
    """The seeds' rule for windows would also use the previous bucket, and other chunks."""
    heads = [small_head(seed, sliding_window=chunk) for seed in (1, 2)]
    write_pair(tmp_path, *heads)
    entry = {"layer": 0, "type": "chunked_attention", "window": chunk, "rope": False}
    write_manifest(tmp_path, DumpManifest(layers=[entry]))
    config = make_config(num_pairs_per_bucket=20)
    result = analyze(tmp_path, **config.model_dump())
    assert_equals_reference(result, analyse(tmp_path, 0, 0, 0, config))
    cells = result.bucket_plasticity
    if chunk == 128:  # buckets are chunks, so no query sees an earlier bucket
        assert len(cells) == 0
        assert "sees keys of an earlier bucket" in result.missing["head_metrics"]["ap_overall"]
    else:
        assert len(cells) == 9


@pytest.mark.parametrize("seed", [0, 5])
def test_large_files_are_cut_to_the_token_limit(tmp_path, seed):
    make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=400, d=4)
    config = make_config(max_tokens_per_head=150, seed=seed, num_pairs_per_bucket=30)
    result = analyze(tmp_path, **config.model_dump())
    assert result.metrics["n_q_tokens"] == result.metrics["n_k_tokens"] == 150
    assert_equals_reference(result, analyse(tmp_path, 0, 0, 0, config))


def test_ks_dimensions_and_level_follow_the_settings(tmp_path):
    make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=60, d=12)
    rows = head_rows(n=60, d=12, seed=1)
    rows["vectors"] = np.random.default_rng(0).standard_t(1.5, (60, 12)).astype(np.float32)
    write_rows(tmp_path, "l00h00q", **rows, sliding_window=None)
    shares = []
    for seed in range(3):
        config = make_config(normality_max_dims=4, p_alpha=0.5, seed=seed, num_pairs_per_bucket=3)
        result = analyze(tmp_path, **config.model_dump())
        assert_equals_reference(result, analyse(tmp_path, 0, 0, 0, config))
        shares.append(result.metrics["q_noise_med_ks_p"])
    assert len(set(shares)) > 1  # the seed decides which dimensions are tested


def test_windows_of_queries_and_keys_must_agree(tmp_path):
    write_pair(tmp_path, small_head(1, sliding_window=64), small_head(2, sliding_window=None))
    with pytest.raises(DumpError, match=r"l00h00q.*sliding_window.*64"):
        analyze(tmp_path)


@pytest.mark.parametrize("where", ["queries", "keys"])
def test_window_recorded_in_one_of_two_files_holds_for_both(tmp_path, where):
    heads = {"queries": small_head(1), "keys": small_head(2)}
    heads[where]["sliding_window"] = 200
    write_pair(tmp_path, heads["queries"], heads["keys"])
    result = analyze(tmp_path)
    assert result.metrics["sliding_window"] == 200
    assert_equals_reference(result, analyse(tmp_path, 0, 0, 0, make_config()))
    cells = result.bucket_plasticity
    assert (cells["q_bucket"] - cells["k_bucket"]).max() == 2


@pytest.mark.parametrize("how", ["no column", "a null", "single_example"])
def test_unknown_texts_leave_the_values_of_the_seeds(tmp_path, how):
    make_dump(tmp_path, layers=1, q_heads=1, k_heads=1, n=200, examples=1)
    known = analyze(tmp_path)
    assert set(known.tables["bucket_plasticity"].pop("n_texts")) == {1}
    path = tmp_path / "l00h00q" / "data.parquet"
    table = pq.read_table(path).drop_columns("example_id")
    if how == "a null":
        table = table.append_column("example_id", pa.array([None, *[0] * 199]))
    pq.write_table(table.replace_schema_metadata(None), path)
    result = analyze(tmp_path, single_example=how == "single_example")
    assert np.isnan(result.tables["bucket_plasticity"].pop("n_texts")).all()
    for name in ("bucket_plasticity", "component_weights"):
        np.testing.assert_equal(result.tables[name], known.tables[name])
    for name, value in known.metrics.items():
        if name != "n_text_groups" and not name.endswith("_se"):
            np.testing.assert_equal(result.metrics[name], value, name)
    assert math.isnan(result.metrics["n_text_groups"])
    assert set(map(tuple, result.tables["influences"].values())) == {()}
    assert "drift" not in result.tables


def test_pairs_are_scored_block_by_block_with_the_same_result(tmp_path, monkeypatch):
    write_pair(tmp_path, small_head(1), small_head(2))
    whole = analyze(tmp_path).bucket_plasticity
    monkeypatch.setattr(seed_scores, "_MOST", 7)
    parts = analyze(tmp_path).bucket_plasticity
    np.testing.assert_allclose(parts["plasticity"], whole["plasticity"], rtol=1e-12)
    assert parts["n_pairs"].tolist() == whole["n_pairs"].tolist()
