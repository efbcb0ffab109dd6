"""The configurations of the original tool, run by its command: `python analyze.py --config`."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub_server import running_hub
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
MODEL = "HuggingFaceTB_SmolLM2_135M"
LAYERS = (0, 29)  # of 30; a dump may have some heads only

PRINTED = f"""\
model_dir: {MODEL}
num_layers: 30
num_q_heads: 9
num_k_heads: 3
"""
EVERY_FIELD = f"""\
model_dir: {MODEL}
dataset_name: viktoroo/sniffed-qk
num_layers: 30
num_q_heads: 9
num_k_heads: 3
dataset_local_root: data
dataset_cache_dir: null
download_max_workers: null
max_tokens_per_head: 50000
normality_max_dims: 64
p_alpha: 0.01
seed: 0
output_csv: head_metrics.csv
bucket_csv: plots/buckets.csv
component_csv: head_component_information.csv
max_workers: 1
"""


def write_original_dump(root):
    """Files as the original tool writes them: the columns of its schema, and nothing beside."""
    rng = np.random.default_rng(0)
    for layer in LAYERS:
        for name in [f"h{head:02}q" for head in range(9)] + [f"h{head:02}k" for head in range(3)]:
            chosen = [rng.choice(512, 30, replace=False) for _ in range(2)]  # of two texts
            position = np.concatenate([np.sort(one) for one in chosen])  # (n,)
            folder = root / f"l{layer:02}{name}"
            folder.mkdir(parents=True)
            rows = {
                "bucket": pa.array(position // 128, pa.int32()),
                "example_id": pa.array(np.repeat([0, 1], 30), pa.int32()),
                "position": pa.array(position, pa.int32()),
                "vector": pa.array(list(rng.normal(size=(60, 4))), pa.list_(pa.float32())),
                "sliding_window": pa.array([None] * 60, pa.int32()),
            }
            pq.write_table(pa.table(rows), folder / "data.parquet")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("original") / "data"
    write_original_dump(root / MODEL)
    return root


def analyze(folder, config, *words, hub=None):
    """Run the command in a folder with this configuration; what it printed."""
    (folder / "run.yaml").write_text(config)
    done = subprocess.run(
        [sys.executable, ROOT / "analyze.py", "--config", "run.yaml", *map(str, words)],
        cwd=folder,
        env=None if hub is None else hub.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def heads_in(table):
    """Layer, query head and key head of every row."""
    return [line.split(",")[:3] for line in table.read_text().splitlines()[1:]]


HEADS = [[str(layer), str(head), str(head // 3)] for layer in LAYERS for head in range(9)]


def test_the_printed_configuration_fetches_the_data_set(data, tmp_path):
    files = {
        str(path.relative_to(data)): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file()
    }
    with running_hub() as hub:
        hub.store.write("viktoroo/sniffed-qk", files)
        analyze(tmp_path, PRINTED, "--max_workers", 1, hub=hub)
    (table,) = (tmp_path / "results").glob("*/head_metrics.csv")
    assert heads_in(table) == HEADS


def test_every_field_of_the_original_is_taken(data, tmp_path):
    (tmp_path / "data").symlink_to(data)
    analyze(tmp_path, EVERY_FIELD)
    assert heads_in(tmp_path / "head_metrics.csv") == HEADS
    info = json.loads((tmp_path / "run.json").read_text())
    assert info["heads"]["not_captured"] == 28 * 9
    copies = {
        "plots/buckets.csv": "head_bucket_plasticity.csv",
        "head_component_information.csv": "head_component_weights.csv",
    }
    for copy, table in copies.items():
        assert (tmp_path / copy).read_bytes() == (tmp_path / table).read_bytes()


def test_flags_override_the_paths_of_the_file(data, tmp_path):
    (tmp_path / "data").symlink_to(data)
    analyze(tmp_path, EVERY_FIELD, "--output_csv", "mine/heads.csv", "--layers", 0)
    assert heads_in(tmp_path / "mine" / "heads.csv") == HEADS[:9]
    heads = (tmp_path / "mine" / "heads.csv").read_bytes()
    assert heads == (tmp_path / "mine" / "head_metrics.csv").read_bytes()
    assert not (tmp_path / "head_metrics.csv").exists()
