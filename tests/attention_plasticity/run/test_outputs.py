"""The tables: their columns, their order, their places."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_plasticity.config import make_config
from attention_plasticity.head_analysis import analyze_head
from attention_plasticity.measure.result import HeadResult
from attention_plasticity.metrics import (
    BUCKET_PLASTICITY,
    COMPONENT_WEIGHTS,
    HEAD_METRICS,
    IDS,
    WORDS,
)
from attention_plasticity.run.outputs import (
    OutputPaths,
    check_writable,
    output_drafts,
    output_paths,
    set_aside,
)
from attention_plasticity.tables.csv_tables import read_table
from dumps import make_dump
from qk_dump.source import open_dump
from qk_toolkit.errors import ConfigError, OutputError

SPEC_METRICS = (
    "layer,q_head,k_head,n_q_tokens,n_k_tokens,d_model,q_R2_pos,q_R2_scalar,q_mae_baseline,"
    "q_mae_proj,q_mae_ratio,q_resid0_skew,q_resid0_kurt,q_resid0_ks_p,q_noise_med_abs_skew,"
    "q_noise_med_abs_kurt,q_noise_med_ks_p,q_noise_frac_ks_p_lt_alpha,ap_overall,"
    "q_beta_norm,q_R2_total"
)


def write(paths: OutputPaths, results: Sequence[HeadResult]) -> None:
    """Write the tables of these heads, and a small run.json."""
    with output_drafts(paths) as drafts:
        for result in results:
            drafts.add(result)
        drafts.end({"heads": {"analysed": len(results)}})


def test_columns_begin_as_promised() -> None:
    assert ",".join(HEAD_METRICS.names).startswith(SPEC_METRICS)
    assert ",".join(BUCKET_PLASTICITY.names) == (
        "layer,q_head,k_head,q_bucket,k_bucket,plasticity,n_pairs,q_position,k_position,n_queries,"
        "n_texts"
    )
    assert ",".join(COMPONENT_WEIGHTS.names) == "layer,q_head,k_head,component,weight,r2"


@pytest.mark.parametrize(
    ("fields", "folder", "metrics"),
    [
        ({}, "results/dump", "results/dump/head_metrics.csv"),
        ({"output_dir": "out"}, "out", "out/head_metrics.csv"),
        ({"output_csv": "runs/x/m.csv"}, "runs/x", "runs/x/m.csv"),
        ({"output_dir": "out", "output_csv": "runs/m.csv"}, "out", "runs/m.csv"),
        ({"output_csv": "/abs/m.csv"}, "/abs", "/abs/m.csv"),
    ],
)
def test_bare_names_lie_in_the_run_folder(
    fields: dict[str, str], folder: str, metrics: str
) -> None:
    paths = output_paths(make_config(**fields), "dump")
    assert (paths.folder, paths.tables["head_metrics"]) == (Path(folder), Path(metrics))
    assert paths.run == Path(folder) / "run.json"


def test_written_tables_are_sorted_and_read_back_exactly(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path / "dump", layers=2, q_heads=2, k_heads=1, n=80))
    heads = [(1, 1), (0, 1), (1, 0), (0, 0)]
    results = [analyze_head(layer, head, 0, dump) for layer, head in heads]
    paths = output_paths(make_config(output_dir=str(tmp_path / "out")), "dump")
    write(paths, sorted(results, key=lambda r: (r.layer, r.q_head)))
    with paths.tables["head_metrics"].open() as file:
        header, *rows = csv.reader(file)
    assert header == list(HEAD_METRICS.names)
    assert [(int(row[0]), int(row[1])) for row in rows] == sorted(heads)
    for result in results:
        row = rows[sorted(heads).index((result.layer, result.q_head))]
        written = dict(zip(header, row, strict=True))
        assert written.pop("layer_type") == result.metrics["layer_type"] == "full_attention"
        expected = [float(result.metrics[name]) for name in written]
        np.testing.assert_array_equal([float(text) for text in written.values()], expected)
    buckets = pd.read_csv(paths.tables["bucket_plasticity"])
    order = buckets[["layer", "q_head", "q_bucket", "k_bucket"]].to_numpy().tolist()
    assert order == sorted(order)
    weights = pd.read_csv(paths.tables["component_weights"])
    sums = weights.groupby(["layer", "q_head"]).weight.sum()
    np.testing.assert_allclose(sums, 1.0, rtol=1e-12)
    run = json.loads(paths.run.read_text())
    digest = hashlib.sha256(paths.tables["bucket_plasticity"].read_bytes()).hexdigest()
    assert run["sha256"]["bucket_plasticity"] == digest


def test_missing_values_are_written_as_nan(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1, n=30))
    paths = output_paths(make_config(output_dir=str(tmp_path / "out")), "dump")
    write(paths, [analyze_head(0, 0, 0, dump)])
    with paths.tables["head_metrics"].open() as file:
        row = next(csv.DictReader(file))
    assert row["sliding_window"] == "nan"
    assert "" not in row.values()


TOKENS = ["nan", "NA", "", "12", "\r", "a\r\nb", "\n", '"', ",", "\t", "x\0y", "</script>", "😀"]


def test_tokens_are_read_back_exactly(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1, n=80))
    paths = output_paths(make_config(output_dir=str(tmp_path / "out")), "dump")
    numbers = dict.fromkeys(WORDS.names[len(IDS) :], [1] * len(TOKENS))
    tokens = {"query_token": TOKENS, "key_token": TOKENS[::-1], "kind": ["typical"] * len(TOKENS)}
    result = analyze_head(0, 0, 0, dump)
    write(paths, [replace(result, tables={**result.tables, "words": numbers | tokens})])
    table = read_table(paths.tables["words"], "words")
    assert table["query_token"].tolist() == TOKENS
    assert table["key_token"].tolist() == TOKENS[::-1]
    assert table["distance"].tolist() == [1] * len(TOKENS)
    assert paths.tables["words"].read_text().splitlines()[0] == ",".join(WORDS.names)


def test_a_failing_table_leaves_all_earlier_files(tmp_path: Path) -> None:
    dump = open_dump(make_dump(tmp_path / "dump", layers=1, q_heads=1, k_heads=1, n=30))
    paths = output_paths(make_config(output_dir=str(tmp_path / "out")), "dump")
    result = analyze_head(0, 0, 0, dump)
    write(paths, [result])
    before = {path: path.read_bytes() for path in paths.all if path.exists()}
    paths.tables["component_weights"].unlink()
    paths.tables["component_weights"].mkdir()  # nothing can be renamed onto a folder
    with pytest.raises(OutputError, match="head_component_weights"):
        write(paths, [result])
    assert not paths.run.exists()  # half an exchange has no run.json
    assert all(
        path.read_bytes() == before[path]
        for path in (paths.tables["head_metrics"], paths.tables["bucket_plasticity"])
    )
    assert not list(paths.folder.glob(".*part*"))


def test_set_aside_numbers_what_it_keeps(tmp_path: Path) -> None:
    paths = output_paths(make_config(output_dir=str(tmp_path)), "dump")
    assert set_aside(paths, include_own=True) is None
    for number in (1, 2):
        paths.tables["head_metrics"].write_text(str(number))
        assert set_aside(paths, include_own=True) == tmp_path / f"previous-{number}"
        assert not paths.tables["head_metrics"].exists()
    assert (tmp_path / "previous-1" / "head_metrics.csv").read_text() == "1"


def test_set_aside_spares_what_the_run_itself_wrote(tmp_path: Path) -> None:
    paths = output_paths(make_config(output_dir=str(tmp_path)), "dump")
    digest = hashlib.sha256(b"ours").hexdigest()
    names = {"head_metrics": "head_metrics.csv", "bucket_plasticity": "old_name.csv"}
    run = {"tables": names, "sha256": dict.fromkeys(names, digest)}
    paths.run.write_text(json.dumps(run))
    paths.tables["head_metrics"].write_text("ours")
    (tmp_path / "old_name.csv").write_text("ours")
    paths.tables["bucket_plasticity"].write_text("someone's")
    keep = set_aside(paths, include_own=False)
    assert keep is not None
    moved = sorted(path.name for path in keep.iterdir())
    assert moved == ["head_bucket_plasticity.csv", "old_name.csv"]
    assert paths.tables["head_metrics"].read_text() == "ours"
    paths.tables["head_metrics"].write_text("replaced by another run")
    assert set_aside(paths, include_own=False) == tmp_path / "previous-2"
    assert not paths.tables["head_metrics"].exists()


def test_check_writable_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(output_paths(make_config(output_dir=str(tmp_path / "a" / "b")), "dump"))
    assert list((tmp_path / "a" / "b").iterdir()) == []
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(output_paths(make_config(output_dir="/proc/nowhere"), "dump"))
