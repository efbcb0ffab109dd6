"""kvpress itself loads exported folders. It needs transformers < 5.3: `make test-oldest` has it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from commands_here import run_here
from helpers.export_dumps import dump_of, read_safetensors
from tiny_models import ARCHITECTURES

HERE = Path(__file__).parent
TESTS = HERE.parents[1]


@pytest.mark.skipif(find_spec("kvpress") is None, reason="kvpress is not installed")
def test_presses_run_with_exported_folders(tmp_path):
    dump = dump_of(ARCHITECTURES["qwen3"].model(), tmp_path / "dump", attention=True)
    run = tmp_path / "run"
    done = run_here("analyze", dump, "--output_dir", run, "--max_workers", 1)
    assert done.returncode == 0, done.stderr
    for source, kind, place, words in (
        (dump, "expected-attention", "expected-attention", ()),
        (dump, "q-filters", "nthngdy/tiny-qwen3_qfilt", ()),
        (run, "duo", "duo", ("--recent_size", 8, "--order", "static_error")),
        (run, "kvpress-budget", "budget", ("--order", "static_error")),
    ):
        done = run_here("export", source, tmp_path / place, "--to", kind, *words)
        assert done.returncode == 0, done.stderr
    paths = os.pathsep.join(map(str, (HERE, TESTS / "qk_sniffer")))
    done = subprocess.run(
        [sys.executable, HERE / "kvpress_presses.py", tmp_path],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["expected_lengths"] == found["filter_lengths"] == [12] * 4
    assert found["duo_lengths"] == [24] * 4  # it masks keys and keeps them
    assert found["mean_difference"] < 1e-4
    assert found["covariance_difference"] < 1e-3
    filters = read_safetensors(tmp_path / "nthngdy" / "tiny-qwen3_qfilt" / "model.safetensors")
    assert np.array(found["filters"]) == pytest.approx(filters["q_filters"])
    values = np.loadtxt(tmp_path / "duo" / "full_attention_heads.tsv", delimiter="\t")
    assert (
        np.array(found["streaming"]).tolist() == (values < np.median(values)).astype(int).tolist()
    )
    assert found["sizes"] == [4, 8]
    assert found["ratio"] == pytest.approx(0.5 * (1 - 12 / 24))
    curves = np.load(tmp_path / "budget" / "budget.npy")
    pruned = np.array(found["pruned"])  # (layers, key heads) of 24 keys
    assert pruned == pytest.approx(24 * curves[49], abs=1)
    assert pruned.sum() == pytest.approx(0.5 * 24 * pruned.size, abs=len(pruned))
