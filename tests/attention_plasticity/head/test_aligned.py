"""Plasticity at one position: against counts at one position, and laws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attention_plasticity as ap
from attention_plasticity.head.aligned import aligned_parts, binned_head
from attention_plasticity.head.plasticity import enough_pairs
from attention_plasticity.head.rows import KeyHead, read_queries
from attention_plasticity.head.token_weights import token_weights
from attention_plasticity.head.windows import NO_CHUNK_SIZE
from attention_plasticity.head_analysis import head_variance_parts, pair_seed
from attention_plasticity.numeric.errors.variance_parts import VarianceParts
from lasting_workers import workers as workers  # a fixture of all tests here
from one_position import counted_at_one_position, tapped_dump
from qk_dump.layout import HeadId
from qk_dump.manifest import DumpManifest

ALIGNED = ("ap_aligned", "ap_aligned_drop", "ap_pooled", "ap_phase")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> ap.Dump:
    """Every position of 16 texts, in two layers."""
    return tapped_dump(tmp_path_factory.mktemp("all"), "llama", [1, 2])


@pytest.mark.parametrize(
    ("model_type", "layers", "sampling"),
    [
        ("llama", [1, 2], "bucket"),  # halves
        ("llama", [1], "context"),
        ("llama", [1], "local"),
        ("glm", [0, 2], "bucket"),  # interleaved, half of the dimensions
        ("stablelm", [0, 2], "bucket"),  # halves, half of the dimensions
        ("smollm3", [3], "bucket"),  # no rotary embedding
    ],
)
def test_it_is_what_queries_of_one_position_count(
    tmp_path: Path, model_type: str, layers: list[int], sampling: str
) -> None:
    dump = tapped_dump(tmp_path / "dump", model_type, layers)
    config = ap.make_config(num_pairs_per_bucket=24, pair_sampling=sampling)
    found, counted, overall = [], [], []
    for layer, q_head in dump.query_heads:
        result = ap.analyze_head(layer, q_head, dump=dump, config=config)
        row = result.metrics
        found.append(row["ap_aligned"] - row["ap_aligned_bias"])
        overall.append(row["ap_overall"] - row["ap_overall_bias"])
        counted.append(counted_at_one_position(dump, layer, q_head, result.k_head, config))
        if model_type == "smollm3":
            assert row["ap_phase"] == row["ap_phase_se"] == 0
    differences = np.abs(np.subtract(found, counted))
    assert differences.mean() <= 0.01
    assert differences.max() <= 0.05
    if model_type == "llama":
        assert np.abs(np.subtract(overall, counted)).mean() > 0.1


def test_samplers_agree_within_errors(tmp_path: Path, everything: ap.Dump) -> None:
    samplers = {
        "uniform": {"base_rate": 8.0, "min_bucket_size": 32},
        "log_uniform": {"base_rate": 24.0, "min_bucket_size": 32},
    }
    dumps = [everything] + [
        tapped_dump(tmp_path / name, "llama", [1, 2], sampler=name, **how)
        for name, how in samplers.items()
    ]
    config = ap.make_config(bin_size=32, pair_sampling="context")
    for layer, q_head in everything.query_heads:
        rows = [ap.analyze_head(layer, q_head, dump=dump, config=config).metrics for dump in dumps]
        for name in ("ap_aligned", "ap_aligned_drop"):
            values = [row[name] - row[f"{name}_bias"] for row in rows]
            errors = [row[f"{name}_se"] for row in rows]
            for value, error in zip(values[1:], errors[1:], strict=True):
                assert abs(value - values[0]) <= 4 * np.hypot(error, errors[0]) + 0.01


def test_bins_of_two_sizes_agree_for_context_pairs(everything: ap.Dump) -> None:
    rows = [
        ap.analyze_head(
            1, 0, dump=everything, config=ap.make_config(bin_size=size, pair_sampling="context")
        ).metrics
        for size in (16, 64)
    ]
    values = [row["ap_aligned_last20"] - row["ap_aligned_last20_bias"] for row in rows]
    error = np.hypot(*(row["ap_aligned_last20_se"] for row in rows))
    assert abs(values[0] - values[1]) <= 3 * error + 0.01
    assert rows[1]["ap_pooled"] > rows[0]["ap_pooled"]


def test_vectors_before_rope_give_the_same(tmp_path: Path, everything: ap.Dump) -> None:
    before = tapped_dump(tmp_path / "dump", "llama", [1], pre_rope=True)
    left, right = (ap.analyze_head(1, 2, dump=dump).metrics for dump in (before, everything))
    for name in ALIGNED:
        for column in (name, f"{name}_se", f"{name}_bias"):
            assert left[column] == pytest.approx(right[column], rel=1e-3, abs=1e-5), column


def _with_tables(dump: ap.Dump, root: Path, change: object) -> ap.Dump:
    """A copy of a dump in which `change` was applied to the table of every head."""
    for head, folder in dump.folders.items():
        (root / head.folder).mkdir(parents=True)
        table = change(head, pq.read_table(folder / "data.parquet"))  # type: ignore[operator]
        pq.write_table(table, root / head.folder / "data.parquet")
    return replace(ap.open_dump(root), manifest=dump.manifest)


def test_the_scale_of_queries_and_keys_does_not_matter(tmp_path: Path, everything: ap.Dump) -> None:
    def change(head: object, table: pa.Table) -> pa.Table:
        flat = table["vector"].combine_chunks().flatten().to_numpy().astype(np.float64)
        width = len(flat) // len(table)
        scale = 1e9 if head.kind == "q" else 3e-7  # type: ignore[attr-defined]
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat * scale), width)
        place = table.schema.get_field_index("vector")
        return table.set_column(place, "vector", vectors)

    scaled = _with_tables(everything, tmp_path / "scaled", change)
    config = ap.make_config(bin_size=16)
    one, other = (ap.analyze_head(1, 1, dump=dump, config=config) for dump in (everything, scaled))
    for name in ALIGNED:
        for column in (name, f"{name}_se", f"{name}_bias"):
            found, expected = other.metrics[column], one.metrics[column]
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-5), column


def test_without_a_record_or_the_size_of_chunks_there_is_a_reason(everything: ap.Dump) -> None:
    assert everything.manifest is not None
    entries = [dict(entry, rotary=None) for entry in everything.manifest.layers or []]
    facts = everything.manifest.model_dump() | {"layers": entries}
    without = replace(everything, manifest=DumpManifest.model_validate(facts))
    result = ap.analyze_head(1, 0, dump=without)
    assert np.isnan(result.metrics["ap_aligned"])
    assert "attention-plasticity add-rotary DUMP" in result.missing["ap_phase"]
    assert result.bins == {}
    chunked = [dict(entry, type="chunked_attention") for entry in everything.manifest.layers or []]
    facts = everything.manifest.model_dump() | {"layers": chunked}
    no_size = replace(everything, manifest=DumpManifest.model_validate(facts))
    assert ap.analyze_head(1, 0, dump=no_size).missing["ap_aligned"] == NO_CHUNK_SIZE


def test_a_run_has_the_same_bytes_for_workers_and_resume(tmp_path: Path) -> None:
    window = {"sliding_window": 40}  # in layer 2
    dump = tapped_dump(tmp_path / "dump", "qwen2", [1, 2], config=window)

    def run(name: str, **how: object) -> ap.Run:
        return ap.analyze_dump(dump.path, output_dir=str(tmp_path / name), **how)

    one, two = run("one", max_workers=1), run("two", max_workers=2)
    tables = sorted(path.name for path in (tmp_path / "one").glob("*.csv"))
    assert "head_bin_plasticity.csv" in tables
    (tmp_path / "two" / ".heads" / "l02h03.json").unlink()
    run("two", max_workers=1)
    for name in tables:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert one.info["bin_size"] == two.info["bin_size"] == 16
    assert one.info["longest_text"] == 256
    assert one.has_bins
    starts = one.bins.groupby("layer")["q_start"].unique()
    assert set(starts[1]) == {16 * number for number in range(1, 16)}
    assert set(starts[2]) == {0, *starts[1]}  # with a window, queries of the first bin take part
    assert (one.bins["q_weight"] == 256).all()  # all tokens of 16 texts
    assert one.head_metrics["ap_aligned_se"].notna().all()


def parts_of(dump: ap.Dump, layer: int, q_head: int, config: ap.RunnerConfig) -> VarianceParts:
    """Parts of the squared error of plasticity at one position."""
    keys = KeyHead.read(dump, layer, q_head // 3, config)
    rows, _ = read_queries(dump, HeadId(layer, q_head, "q"), keys, config)
    head = binned_head(rows, token_weights(dump, "q", rows), keys, None, config)
    parts = aligned_parts(head, pair_seed(config, layer, q_head), 256)
    assert parts is not None
    return parts


@pytest.mark.parametrize("sampling", ["bucket", "context", "local"])
def test_auto_takes_the_error_at_one_position(sampling: str) -> None:
    dump, (layer, q_head) = ap.open_sample(), (0, 1)
    config = ap.make_config(pair_sampling=sampling)
    parts = parts_of(dump, layer, q_head, config)
    row = ap.analyze_head(layer, q_head, dump=dump, config=config).metrics
    total = parts.texts + parts.queries + parts.keys + parts.pairs
    assert total == pytest.approx(row["ap_aligned_se"] ** 2, rel=0.15)
    auto = ap.make_config(pair_sampling=sampling, num_pairs_per_bucket="auto")
    chosen = enough_pairs(parts)
    given = ap.make_config(pair_sampling=sampling, num_pairs_per_bucket=chosen)
    rows = [ap.analyze_head(layer, q_head, dump=dump, config=how).metrics for how in (auto, given)]
    for name in ("ap_aligned", "ap_overall"):
        assert rows[0][name] == rows[1][name]
    if sampling != "context":
        over = head_variance_parts(dump, layer, q_head, 0, config)
        assert chosen < enough_pairs(over)
