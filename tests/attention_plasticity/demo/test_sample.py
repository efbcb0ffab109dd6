"""The dump that comes with the package."""

import json

import numpy as np
import pyarrow as pa
import pytest

import attention_plasticity as ap
from attention_plasticity.demo.sample import repeated_path, sample_path
from qk_dump.checks import rules_of
from qk_dump.columns import COLUMNS
from qk_dump.heads import HeadId
from qk_dump.manifest import DumpManifest
from qk_dump.positions import joint_inclusion
from qk_dump.reader import read_head
from qk_dump.source import open_dump
from tools.make_sample import thinned

LAYERS = (0, 14, 29)
TOKENS = 12 * 8192


@pytest.fixture(scope="module")
def sample():
    return ap.open_sample()


def rows_of(dump, head):
    """All rows with all columns; every value is checked as in a run."""
    return read_head(dump.files(head), examples=True, columns=COLUMNS, rules=rules_of(dump, head))


def test_it_is_small_and_holds_whole_layers(sample):
    assert sum(path.stat().st_size for path in sample_path().rglob("*") if path.is_file()) < 9e6
    keys = [(layer, head) for layer in LAYERS for head in range(3)]
    assert sample.query_heads == [(layer, head) for layer in LAYERS for head in range(9)]
    assert sample.key_heads == keys
    assert sorted(sample.attended) == [HeadId(*head, "k", attended=True) for head in keys]


def test_its_queries_on_repeated_tokens_are_those_of_the_same_heads(sample):
    repeated = open_dump(repeated_path())
    assert repeated.query_heads == sample.query_heads
    assert not repeated.key_heads
    assert repeated.manifest.synthetic == {
        **{"type": "repeated", "length": 512, "period": 256, "number": 16, "seed": 0}
    }
    assert repeated.manifest.rope_parameters == sample.manifest.rope_parameters
    for head in repeated.folders:
        rows = rows_of(repeated, head)
        assert np.unique(rows["example_id"]).tolist() == list(range(16))
        assert len(rows) > 200
    files = [path for path in repeated_path().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8e5


def test_inclusion_weights_rows_to_all_keys(sample):
    """Sums over the rows estimate the number of tokens, and the attention of each query head."""
    for layer, head in sample.key_heads:
        parts = [HeadId(layer, head, "k"), HeadId(layer, head, "k", attended=True)]
        rows = [rows_of(sample, part) for part in parts]
        inclusion = np.concatenate([part["inclusion"] for part in rows])  # (n,)
        received = np.concatenate([part["received"] for part in rows])
        assert (1 / inclusion).sum() == pytest.approx(TOKENS, rel=0.06)
        weighted = (received / inclusion[:, None]).sum(axis=0)  # (group,)
        np.testing.assert_allclose(weighted, 12, rtol=0.05)  # all weights of a text sum to 1


def test_inclusion_of_thinned_rows_is_their_frequency():
    """Rows of a simulated capture, thinned by `make sample`, against all keys."""
    manifest = DumpManifest(
        bucket_type="uniform", min_bucket_size=512, sampler={"type": "uniform", "base_rate": 320.0}
    )
    n = 600_000
    base = np.full(n, 320 / 512)
    drawn_with = np.tile([0.0, 0.2, 0.9, 1.0], n // 4)  # (n,)
    rng = np.random.default_rng(0)
    in_base, drawn = rng.random(n) < base, rng.random(n) < drawn_with
    columns = {
        "position": np.arange(n) % 8192,
        "inclusion": joint_inclusion(base, drawn_with),
        "kind": np.tile([0, 1, 2, 3], n // 4),
    }
    table = pa.table(columns)
    kept = pa.concat_tables(
        [
            thinned(table.take(np.flatnonzero(rows)), head, manifest)
            for rows, head in (
                (in_base, HeadId(0, 0, "k")),
                (drawn & ~in_base, HeadId(0, 0, "k", attended=True)),
            )
        ]
    )
    kinds, inclusion = kept["kind"].to_numpy(), kept["inclusion"].to_numpy()
    for kind in range(4):
        [expected] = {*inclusion[kinds == kind]}
        found = (kinds == kind).sum() / (n // 4)
        assert found == pytest.approx(expected, abs=0.005)


def test_it_tells_its_origin_and_no_path_of_a_machine():
    folder = sample_path()
    manifest = json.loads((folder / "dump.json").read_text())
    assert manifest["model"] == "model/SmolLM2-135M-Instruct-Q4_1"
    assert manifest["slice"]["layers"] == list(LAYERS)
    assert manifest["min_bucket_size"] == 512
    rights = (folder / "RIGHTS.md").read_text()
    assert "Apache-2.0" in rights
    assert "public domain" in rights
    assert "make sample" in rights
    for path in (*folder.rglob("*"), *repeated_path().rglob("*")):
        if path.suffix in (".json", ".md"):
            assert "/tmp/" not in path.read_text()
            assert "/home/" not in path.read_text()
