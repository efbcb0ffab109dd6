"""Models with random weights: what decides them, and captures of them."""

import json

import torch
from torch import nn

from qk_sniffer.config import ModelSettings
from qk_sniffer.engines.hf.loading import load_model, random_model
from sniffing import same_bytes, same_rows, sniff
from tiny_texts import save_texts


def loaded(folder, **settings):
    return load_model(ModelSettings(name=str(folder), **settings), "cpu")


def weights_of(model):
    return torch.cat([weight.detach().cpu().flatten() for weight in model.parameters()])


def test_the_seed_alone_decides_the_weights(model):
    before = torch.get_rng_state()
    first = loaded(model, random_weights=True)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    again, other = (loaded(model, random_weights=True, random_seed=seed) for seed in (0, 1))
    own = weights_of(first.model)
    assert torch.equal(own, weights_of(again.model))
    assert not torch.equal(own, weights_of(other.model))
    trained = loaded(model)
    assert own.shape == weights_of(trained.model).shape
    assert not torch.equal(own, weights_of(trained.model))
    assert first.title == f"{model} (random weights)"
    assert first.attention == trained.attention
    spread = loaded(model, random_weights=True, device_map="auto")
    assert torch.equal(own, weights_of(spread.model))


def test_no_weights_are_read_and_frequencies_keep_their_precision(model, tmp_path):
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    found = loaded(tmp_path, random_weights=True, dtype="bfloat16")
    assert found.dtype == "bfloat16"
    frequencies = [buffer for name, buffer in found.model.named_buffers() if "inv_freq" in name]
    assert frequencies
    assert all(buffer.dtype == torch.float32 for buffer in frequencies)


def test_weights_that_a_model_leaves_uninitialised_are_drawn_too():
    def build():
        module = nn.Linear(2, 2)
        module.bias = nn.Parameter(torch.empty(1_000))
        return module

    first, second = random_model(build, 0), random_model(build, 0)
    assert torch.equal(weights_of(first), weights_of(second))
    assert torch.isfinite(weights_of(first)).all()
    assert 0.01 < weights_of(first)[-1_000:].std() < 0.03
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_capture_records_them(model, tmp_path):
    texts = save_texts(tmp_path / "texts", [60, 30])
    random = {"model__random_weights": "true"}
    assert sniff(model, texts, tmp_path / "trained") == 0
    assert sniff(model, texts, tmp_path / "random", **random) == 0
    trained, found = (
        json.loads((tmp_path / name / "dump.json").read_text()) for name in ("trained", "random")
    )
    assert found["random_weights"] is True
    assert found["model"] == f"{model} (random weights)"
    assert found["capture"]["model"]["random_seed"] == 0
    assert "random_weights" not in trained
    assert "random_weights" not in trained["capture"]["model"]
    assert "weights: `random`" in (tmp_path / "random" / "README.md").read_text()
    assert not same_rows(tmp_path / "trained", tmp_path / "random")
    assert sniff(model, texts, tmp_path / "random", **random, model__random_seed=1) == 2
    torch.manual_seed(7)  # of this process, which has no effect
    assert sniff(model, texts, tmp_path / "again", **random) == 0
    assert same_bytes(tmp_path / "random", tmp_path / "again")
