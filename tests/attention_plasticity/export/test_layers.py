"""Windows of whole layers: which layers stay full, and that a model takes the file."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import DynamicCache

from commands_here import run_here
from helpers.export_dumps import provenance, some_tokens
from helpers.export_runs import KEY_HEADS, exported, give_roles, give_windows, make_run, refusal
from helpers.run_tables import LAYERS
from tiny_models import ARCHITECTURES

TO = "layer-windows"
STATIC = [0.10, 0.14, 0.30, 0.10, 0.21, 0.25]  # means of layers: .12, .20, .23
FAR = [0.01, 0.2, 0.01, 0.02, 0.3, 0.4]


@pytest.fixture
def run(tmp_path):
    folder = make_run(tmp_path / "run", static_error=STATIC, far_mass=FAR)
    info = json.loads((folder / "run.json").read_text())
    info["config"] = {**info.get("config", {}), "distant_from": 8}
    (folder / "run.json").write_text(json.dumps(info))
    return folder


def windows(folder):
    return json.loads((folder / "layer_windows.json").read_text())


def test_layers_with_the_largest_mean_stay_full(run, tmp_path):
    give_roles(run, (1, 0))
    done = run_here("export", run, tmp_path / "out", "--to", TO, "--full_layers", 1)
    assert done.returncode == 0, done.stderr
    found = windows(tmp_path / "out")
    assert found["layer_types"] == ["sliding_attention"] * 2 + ["full_attention"]
    assert found["sliding_window"] == 8
    assert found["max_attention_window"] == [8, 8, 2**31 - 1]
    table = pd.read_csv(tmp_path / "out" / "layers.csv")
    assert table["value"].tolist() == pytest.approx(np.reshape(STATIC, (LAYERS, -1)).mean(axis=1))
    assert table["value_se"].tolist() == pytest.approx([0.004 / np.sqrt(KEY_HEADS)] * LAYERS)
    assert table["far_mass"].tolist() == pytest.approx([0.105, 0.015, 0.35])
    assert table["may_have_window"].tolist() == [0.5, 0.5, 0.0]  # head 1.0 copies
    assert table["copying_heads"].tolist() == [0, 1, 0]
    assert "layers 2 are full, the others see 8 tokens" in done.stdout
    assert "a window may hurt layers 1, which have heads that copy" in done.stdout
    assert provenance(tmp_path / "out")["rules"]["order"] == "static_error"
    other = exported(run, tmp_path / "far", TO, "--order", "far_mass", "--full_layers", 2)
    assert windows(other)["max_attention_window"] == [2**31 - 1, 8, 2**31 - 1]


def test_a_model_of_transformers_takes_the_file(run, tmp_path):
    """Its layers have the windows, and its cache holds no more than the window."""
    found = windows(exported(run, tmp_path / "out", TO))
    architecture = ARCHITECTURES["qwen3"]
    found["layer_types"] = ["full_attention", *found["layer_types"]]  # it has four layers
    del found["max_attention_window"]
    plain, model = architecture.model("sdpa"), None
    config = type(plain.config)(**{**plain.config.to_dict(), **found})
    model = type(plain)._from_config(config, attn_implementation="sdpa").eval()
    model.load_state_dict(plain.state_dict())
    cache = DynamicCache(config=config)
    with torch.no_grad():
        seen = model(some_tokens(1, 24), past_key_values=cache).logits
        assert (seen[0, :8] - plain(some_tokens(1, 24)).logits[0, :8]).abs().max() < 1e-4
        assert (seen - plain(some_tokens(1, 24)).logits).abs().max() > 1e-3
    own = [layer.self_attn.sliding_window for layer in model.model.layers]
    assert own == [None if one == "full_attention" else 8 for one in found["layer_types"]]
    assert [layer.keys.shape[2] for layer in cache.layers] == [
        24 if one is None else 7 for one in own
    ]


def test_refusals(run, tmp_path):
    assert "--full_layers: the model has 3 layers, got 4" in refusal(run, TO, "--full_layers", 4)
    assert "uniform has no values, and layers need them" in refusal(run, TO, "--order", "uniform")
    message = refusal(run, "duo", "--full_layers", 1)
    assert "--full_layers: can only be used with --to layer-windows" in message
    equal = make_run(tmp_path / "equal", static_error=[0.1, 0.2, 0.2, 0.1, 0.3, 0.3])
    (equal / "run.json").write_text((run / "run.json").read_text())
    assert "layers 0-1 have equal values of static_error" in refusal(equal, TO, "--full_layers", 2)
    assert "layers 0 have windows or chunks of their own" in refusal(give_windows(run, 0), TO)
