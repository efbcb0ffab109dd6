"""Warnings about small samples: one sentence per kind, whatever the number of heads."""

import math
from dataclasses import replace

import pytest

from attention_plasticity import open_run
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.run.warnings import RunWarning, SampleSizes, sizes_of
from dumps import add_rotary, make_dump
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, read_manifest, write_manifest
from qk_dump.positions import BucketGeometry
from runs_here import analyse, run_info

UNIFORM = BucketGeometry("uniform", 128)


def columns_of(name, queries, texts):
    """Two cells per bin or bucket."""
    cells = [bucket for bucket in queries for _ in range(2)]
    few = {bucket for bucket in queries if texts and texts[bucket] < 4}
    return {
        name: cells,
        "plasticity": [math.nan if bucket in few else 0.5 for bucket in cells],
        "n_queries": [queries[bucket] for bucket in cells],
        "n_texts": [texts[bucket] if texts else math.nan for bucket in cells],
    }


def head(queries, texts=None, *, bins=True, **missing):
    """A head with so many queries and texts in each bin, or in each query bucket."""
    small = {0: 3} if bins else queries
    tables = {"bucket_plasticity": columns_of("q_bucket", small, dict.fromkeys(small, 1))}
    if bins:
        tables["bins"] = columns_of("q_bin", queries, texts)
    entropy = math.nan if "attn_entropy" in missing else 1.0
    metrics = {"n_text_groups": 9.0, "attn_entropy": entropy}
    return HeadResult(0, 0, 0, metrics, tables, missing={"head_metrics": missing})


def buckets(queries):
    """A head without bins."""
    return head(queries, bins=False)


def warnings_of(*heads, geometry=UNIFORM, **how):
    sizes = SampleSizes(**how)
    for one in heads:
        sizes.add(one.metrics, one.missing["head_metrics"], sizes_of(one))
    return list(sizes.warnings(geometry, 512))


def test_enough_queries_of_enough_texts_are_no_word_worth():
    assert warnings_of(head({1: 32, 2: 500}, {1: 4, 2: 9}), head({3: 40}, {3: 4})) == []
    assert warnings_of(buckets({1: 32})) == []
    assert warnings_of() == []


def test_bins_with_few_queries_are_named_once_for_all_heads():
    fine = dict.fromkeys(range(10), 9)
    few = [head({1: 40, 5: 31, 6: 3 + number, 7: 30, 9: 8}, fine) for number in (0, 1)]
    (warning,) = warnings_of(*few, head({1: 99}, {1: 9}))
    assert (warning.kind, warning.heads) == ("few_queries", 2)
    assert warning.text == (
        "Fewer than 32 queries in bins 5-7,9 (positions 2,560-4,095, 4,608-5,119), in 2 of 3 "
        "heads; the smallest number is 3. RoPE-aligned plasticity is unreliable there. Capture "
        "more texts, or set a larger bin_size."
    )


def test_bins_that_few_texts_reach_are_left_out():
    (warning,) = warnings_of(head({1: 50, 2: 50}, {1: 5, 2: 3}))
    assert warning.text == (
        "Fewer than 4 texts in bin 2 (positions 1,024-1,535), in 1 of 1 heads; the smallest number "
        "is 3. Means and figures have no values there. Capture more texts of this length."
    )


def test_plasticity_that_is_not_known_is_a_note_with_the_reason():
    why = head({1: 50}, {1: 9}, ap_aligned="no record", ap_attended="no keys")
    without = head({1: 50}, {1: 9}, ap_attended="no keys", attn_entropy="no columns")
    aligned, attended = warnings_of(why, without)
    assert attended.text == "Attended plasticity is not known in 1 of 2 heads: no keys."
    assert aligned.text == "RoPE-aligned plasticity is not known in 1 of 2 heads: no record."
    assert (attended.kind, aligned.kind) == ("attended_unknown", "aligned_unknown")
    assert (attended.reasons, aligned.reasons) == (["no keys"], ["no record"])


@pytest.fixture
def sparse(tmp_path):
    return add_rotary(make_dump(tmp_path / "dump", layers=1, n=120, examples=3))


def found_in(dump, out, **fields):
    """The warnings in run.json of a run."""
    analyse(dump, out, **fields)
    return [RunWarning(**one) for one in run_info(out)["warnings"]]


def test_a_run_keeps_its_warnings_with_its_tables(sparse, tmp_path):
    first = found_in(sparse, tmp_path / "out")
    kinds = [warning.kind for warning in first]
    assert kinds == ["few_queries", "few_texts", "no_errors"]  # the dump has three texts
    assert "bins 1-15 (positions 64-1,023), in 4 of 4 heads" in first[0].text
    (tmp_path / "out" / "run.json").unlink()
    assert found_in(sparse, tmp_path / "out") == first  # from the records alone
    run = open_run(tmp_path / "out")
    assert set(run.bucket_plasticity["n_texts"]) == {2, 3}


def test_an_unknown_sampler_and_few_queries_in_a_bin_are_told(tmp_path):
    dump = make_dump(tmp_path / "dump", layers=1, n=2000, examples=12)
    write_manifest(dump, DumpManifest(layers=[{"layer": 0, "rope": False}]))
    (note,) = found_in(dump, tmp_path / "out", bin_size=256)
    assert (note.kind, note.heads) == ("weights_unknown", 4)
    assert note.text.startswith("The probability with which tokens were kept is not known: dump")
    few, *_, note = found_in(dump, tmp_path / "small", bin_size=16)
    assert (few.kind, few.heads) == ("few_queries", 4)
    assert note.kind == "weights_unknown"
    table = open_run(tmp_path / "small").table("bins")
    small = table[table["n_queries"] < 32]
    assert f"the smallest number is {small['n_queries'].min()}. RoPE-aligned" in few.text


def test_layers_that_select_keys_are_explained(tmp_path):
    dump = make_dump(tmp_path / "dump", layers=3, q_heads=2, k_heads=1, n=2000, examples=12)
    add_rotary(dump, 3)
    manifest = read_manifest(dump / MANIFEST_NAME)
    assert manifest.layers is not None
    first, *others = manifest.layers
    layers = [first, *(replace(layer, selective=True) for layer in others)]
    write_manifest(dump, manifest.model_copy(update={"layers": layers}))
    (note,) = found_in(dump, tmp_path / "out", bin_size=256)
    assert (note.kind, note.heads) == ("selective_layers", 4)
    assert note.text.startswith("In layers 1-2 the content of keys decides which keys")
    assert found_in(dump, tmp_path / "first", layers=[0], bin_size=256) == []
