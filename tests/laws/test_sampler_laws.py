"""Means over tokens do not depend on the sampler: real captures of the same texts agree."""

import math

import pyarrow.parquet as pq
import pytest

from attention_plasticity import analyze_dump
from attention_plasticity.metrics import ALIGNED_DROP, TOKEN_MEANS
from lasting_workers import workers as workers  # a fixture of all tests here
from sniffing import sniff
from tiny_texts import save_texts, save_tiny_model

SAMPLERS = {
    "all": {"capture__min_bucket_size": 32},
    "uniform": {"capture__sampler__base_rate": 8.0, "capture__min_bucket_size": 32},
    "log_uniform": {"capture__sampler__base_rate": 24.0, "capture__min_bucket_size": 16},
}
SETTINGS = {"distant_from": 64, "num_pairs_per_bucket": 8, "max_workers": 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("samplers")


@pytest.fixture(scope="module")
def tables(root):
    """The tables of heads of one text set, by sampler."""
    model, texts = save_tiny_model(root / "model"), save_texts(root / "texts", [400] * 16)
    found = {}
    for name, fields in SAMPLERS.items():
        dump = root / name
        chosen = {"capture__sampler__type": name, "capture__layers": "0,2", **fields}
        assert sniff(model, texts, dump, **chosen) == 0
        run = analyze_dump(dump, output_dir=root / f"{name}-run", **SETTINGS)
        assert "weights_unknown" not in {one["kind"] for one in run.info["warnings"]}
        found[name] = run.head_metrics
    return found


@pytest.mark.parametrize("sampler", ["uniform", "log_uniform"])
@pytest.mark.parametrize("name", [*TOKEN_MEANS, ALIGNED_DROP])
def test_samplers_agree_within_errors(tables, name, sampler):
    """The value of all tokens is known. A sample of them differs from it by its own error."""
    every, some = tables["all"], tables[sampler]
    assert every[name].notna().all()
    z = (some[name] - every[name]) / some[f"{name}_se"]
    assert (z.abs() < 4.5).all()
    assert math.sqrt((z**2).mean()) < 2.0


def test_captured_queries_alone_depend_on_the_sampler(root, tables):
    """Early queries see few keys. A mean over the rows of `log_uniform` counts them too often."""
    entropy = pq.read_table(root / "log_uniform" / "l00h00q")["entropy"].to_numpy()
    row = tables["log_uniform"].iloc[0]
    assert abs(entropy.mean() - tables["all"]["attn_entropy"][0]) > 10 * row["attn_entropy_se"]
