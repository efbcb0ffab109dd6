"""Gates of key heads and scores of query heads against the attention weights of a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from attention_plasticity.export.gates import by_key_head, gates
from commands_here import run_here
from export_dumps import dump_of, provenance, some_tokens
from tiny_models import ARCHITECTURES

RECENT = 8


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = ARCHITECTURES["llama"].model()
    return dump_of(model, tmp_path_factory.mktemp("duo") / "dump", attention=True)


@pytest.fixture(scope="module")
def far() -> np.ndarray:
    """(layers, query heads) mean over queries of the weights of far keys that are no sinks."""
    model = ARCHITECTURES["llama"].model("eager")
    with torch.no_grad():
        weights = model(input_ids=some_tokens(), output_attentions=True).attentions
    found = []
    for layer in weights:
        texts, heads, length, _ = layer.shape
        total = np.zeros(heads)
        for query in range(length):
            for key in range(4, query - RECENT + 1):
                total += layer[:, :, query, key].sum(dim=0).numpy()
        found.append(total / (texts * length))
    return np.array(found)


def exported(dump: Path, folder: Path, *words: object) -> np.ndarray:
    done = run_here("export", dump, folder, "--to", "duo", "--recent_size", RECENT, *words)
    assert done.returncode == 0, done.stderr
    return np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t", ndmin=2)


@pytest.mark.parametrize("rule", ["max", "mean"])
def test_values_are_far_attention(dump: Path, far: np.ndarray, tmp_path: Path, rule: str) -> None:
    words = () if rule == "max" else ("--group", rule)
    found = exported(dump, tmp_path / "out", *words)
    pairs = far.reshape(4, 2, 2)
    expected = pairs.max(axis=2) if rule == "max" else pairs.mean(axis=2)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == {"sink_size": 4, "recent_size": RECENT}
    facts = provenance(tmp_path / "out")
    assert facts["rules"]["group"] == f"{rule} of the query heads of a key head"
    assert facts["heads"][5]["far_attention"] == pytest.approx(far[1, 1], rel=1e-3)
    assert 0 < facts["heads"][5]["far_attention_error"] < far[1, 1]


def test_threshold_and_share(dump: Path, far: np.ndarray, tmp_path: Path) -> None:
    values = far.reshape(4, 2, 2).max(axis=2)
    middle = float(np.sort(values, axis=None)[3:5].mean())
    by_threshold = exported(dump, tmp_path / "a", "--threshold", middle, "--sink_size", 16)
    by_share = exported(dump, tmp_path / "b", "--share", 0.5)
    assert by_threshold.tolist() == by_share.tolist() == (values > middle).astype(float).tolist()
    assert json.loads((tmp_path / "a" / "config.json").read_text())["sink_size"] == 16
    assert provenance(tmp_path / "b")["rules"]["full_attention_heads"] == 4


def test_headkv_has_one_line_with_a_score_of_every_query_head(
    dump: Path, far: np.ndarray, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = run_here("export", dump, out, "--to", "headkv", "--recent_size", RECENT)
    assert done.returncode == 0, done.stderr
    text = (out / "head_scores.json").read_text()
    assert text.count("\n") == 1
    scores = json.loads(text)
    assert list(scores) == [f"{layer}-{head}" for layer in range(4) for head in range(4)]
    found = np.array(list(scores.values())).reshape(4, 4)
    assert found == pytest.approx(far, rel=1e-3, abs=1e-5)


def test_gates_of_equal_values_come_in_the_order_of_heads() -> None:
    values = np.array([[0.2, 0.9], [0.2, 0.2]])
    assert gates(values, None, 0.5).tolist() == [[1, 1], [0, 0]]
    assert gates(values, None, 0.0).tolist() == [[0, 0], [0, 0]]
    assert gates(values, None, 1.0).tolist() == [[1, 1], [1, 1]]
    assert gates(values, 0.9, None).tolist() == [[0, 1], [0, 0]]
    assert gates(values * 2 - 0.6, None, None) == pytest.approx(np.array([[0, 1], [0, 0]]))


def test_query_heads_of_a_key_head_are_neighbours() -> None:
    table = np.array([[1.0, 3.0, 5.0, 4.0]])
    assert by_key_head(table, 2, "max").tolist() == [[3, 5]]
    assert by_key_head(table, 2, "mean").tolist() == [[2, 4.5]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--recent_size", 12), "--recent_size: expected a power of two, such as 256, got 12"),
        (("--recent_size", 32), "the last query is at position 23, so no query has far keys"),
        (("--threshold", 0.5, "--share", 0.5), "--threshold: cannot be used together with"),
        (("--share", 1.5), "--share: expected a number from 0 to 1, got '1.5'"),
        (("--threshold", "nan"), "--threshold: expected a number from 0 to 1, got 'nan'"),
        (("--sink_size", 3), "--sink_size: expected an integer of at least 4, got '3'"),
        (("--group", "median"), "--group: expected one of max, mean, got 'median'"),
    ],
)
def test_refusals(dump: Path, tmp_path: Path, words: tuple[object, ...], message: str) -> None:
    done = run_here("export", dump, tmp_path / "out", "--to", "duo", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_dump_without_attention_is_refused(tmp_path: Path) -> None:
    dump = dump_of(ARCHITECTURES["llama"].model(), tmp_path / "dump")
    done = run_here("export", dump, tmp_path / "out", "--to", "duo", "--recent_size", RECENT)
    assert done.returncode == 1
    assert "l00h00q: the queries have no attention columns" in done.stderr


def test_gates_come_from_the_static_errors_of_a_run(dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run_here("analyze", dump, "--output_dir", out, "--max_workers", 1)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(out / "key_head_metrics.csv").sort_values(["layer", "k_head"])
    errors = table["static_error"].to_numpy().reshape(-1, 2)  # (layers, key heads)
    found = exported(dump, tmp_path / "values", "--run", out)
    assert found == pytest.approx(errors, abs=1e-6)
    assert exported(dump, tmp_path / "half", "--run", out, "--share", 0.5).sum() == errors.size / 2
    kept = exported(dump, tmp_path / "one", "--run", out, "--threshold", errors.max())
    assert np.argmax(kept) == np.argmax(errors)
    entry = provenance(tmp_path / "values")["heads"][0]
    assert entry["static_error"] == errors[0, 0]
    assert entry["static_error_error"] == table["static_error_se"].iloc[0]


def test_a_run_of_another_dump_is_refused(dump: Path, tmp_path: Path) -> None:
    some = tmp_path / "some"
    words = ("--output_dir", some, "--max_workers", 1, "--layers", "0")
    assert run_here("analyze", dump, *words).returncode == 0
    refused = run_here("export", dump, tmp_path / "out", "--to", "duo", "--run", some)
    assert refused.returncode == 2
    assert "has no static error of key head 0 of layer 1" in refused.stderr
    info = json.loads((some / "run.json").read_text())
    info["input"]["dump"]["model"] = "another"
    (some / "run.json").write_text(json.dumps(info))
    refused = run_here("export", dump, tmp_path / "out", "--to", "duo", "--run", some)
    assert f"is not an analysis of {dump}" in refused.stderr
    refused = run_here(
        *("export", dump, tmp_path / "out", "--to", "duo", "--run", some, "--group", "max")
    )
    assert "--group: has no effect with --run" in refused.stderr
    assert not (tmp_path / "out").exists()
