"""`triattention.pt` against the rules of its loaders, the queries of a model and the method.

The rules are those of the method's plugin for vLLM and SGLang (layout `official`) and of
TensorRT-LLM (both layouts), written down from their sources of 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from commands_here import run_here
from helpers.export_dumps import TEXTS, dump_of, exported, queries_of
from tiny_models import ARCHITECTURES, Architecture

FLAT = ("--layout", "tensorrt-llm")


@dataclass(frozen=True)
class Loaded:
    """What a loader holds: (layers, query heads, bands) means, and the rotary embedding."""

    mean: np.ndarray
    length: np.ndarray
    omega: np.ndarray
    factor_squared: np.ndarray | None  # None: the loader takes it from the config of the model


def load_official(path):
    content = torch.load(path, weights_only=True)
    metadata, stats = content["metadata"], content["stats"]
    bands = metadata["head_dim"] // 2
    omega = metadata["inv_freq"]
    assert isinstance(omega, torch.Tensor | list)  # otherwise rope_theta 10000 is assumed
    numbers = [tuple(int(part[-2:]) for part in name.split("_")) for name in stats]
    layers, heads = (len({number[axis] for number in numbers}) for axis in (0, 1))
    assert sorted(numbers) == sorted(map(tuple, metadata["sampled_heads"]))
    assert len(numbers) == layers * heads
    names = [[f"layer{i:02d}_head{j:02d}" for j in range(heads)] for i in range(layers)]

    def table(value):
        rows = [torch.stack([stats[name][value] for name in layer]) for layer in names]
        assert rows[0].dtype == torch.float32
        return torch.stack(rows).double().numpy()

    mean = table("q_mean_real") + 1j * table("q_mean_imag")
    assert mean.shape[-1] == bands
    return Loaded(mean, table("q_abs_mean"), omega[:bands].double().numpy(), None)


def load_flat(path):
    content = torch.load(path, weights_only=True)
    assert {*content} == {"E_q", "E_q_norm", "omega", "freq_scale_sq"}
    assert content["E_q"].dtype == torch.complex64
    assert content["E_q"].shape == content["E_q_norm"].shape
    assert content["omega"].shape == content["freq_scale_sq"].shape == content["E_q"].shape[2:]
    mean, *others = (
        content[name].numpy() for name in ("E_q", "E_q_norm", "omega", "freq_scale_sq")
    )
    assert all(other.dtype == np.float32 for other in others)
    return Loaded(mean, *others)


@pytest.fixture(params=["official", "tensorrt-llm"])
def case(request, model_and_dump, tmp_path):
    """A model and its file as a loader holds it."""
    model, dump = model_and_dump
    folder = exported(dump, tmp_path / "out", "triattention", "--layout", request.param)
    load = load_official if request.param == "official" else load_flat
    return model, load(folder / "triattention.pt")


def bands_of(vectors):
    half = vectors.shape[-1] // 2
    return vectors[..., :half] + 1j * vectors[..., half:]


def test_means_are_those_of_all_queries(case):
    model, loaded = case
    bands = bands_of(queries_of(model)[0])  # (layers, heads, texts, length, bands)
    assert loaded.mean == pytest.approx(bands.mean(axis=(2, 3)), rel=1e-3, abs=1e-4)
    assert loaded.length == pytest.approx(abs(bands).mean(axis=(2, 3)), rel=1e-3, abs=1e-4)


def test_the_rotary_embedding_is_that_of_the_model(case):
    model, loaded = case
    rotary = model.model.rotary_emb
    assert loaded.omega == pytest.approx(rotary.inv_freq.numpy(), rel=1e-5)
    if loaded.factor_squared is not None:
        assert loaded.factor_squared == pytest.approx(rotary.attention_scaling**2, rel=1e-5)


def test_scores_from_the_file_equal_scores_from_the_queries(case):
    """The mean logit of all queries at a distance, by the model's own RoPE, and the rest."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model, loaded = case
    rotary, place, key_place = model.model.rotary_emb, (1, 2), 3
    squared = loaded.factor_squared
    squared = rotary.attention_scaling**2 if squared is None else squared
    before = queries_of(model)[0][place]
    queries = torch.tensor(before.reshape(-1, before.shape[-1]))  # (n, d)
    key = torch.randn(queries.shape[1], generator=torch.Generator().manual_seed(7)).double()
    mean, length = loaded.mean[place], loaded.length[place]
    band = bands_of(key.numpy())
    phase = np.angle(mean * band.conj())
    bands = bands_of(queries.numpy())
    rest = abs(bands).mean(axis=0) - abs(bands.mean(axis=0))  # (bands,)
    rest = rotary.attention_scaling**2 * float(rest @ abs(band))
    scores = []
    for distance in (0, 1, 2, 16, 500):
        positions = torch.tensor([[key_place, key_place + distance]])
        cos, sin = rotary(queries[None].float(), positions)
        at_key, at_query = ((c[None], s[None]) for c, s in zip(cos[0], sin[0], strict=True))
        turned = apply_rotary_pos_emb(queries[None, None], queries[None, None], *at_query)[0]
        turned_key = apply_rotary_pos_emb(key[None, None, None], key[None, None, None], *at_key)[1]
        logit = float((turned @ turned_key.mT).mean())
        angle = loaded.omega * distance + phase
        score = float((squared * abs(mean) * abs(band) * np.cos(angle)).sum())
        score += float((squared * (length - abs(mean)) * abs(band)).sum())
        assert score == pytest.approx(logit + rest, rel=1e-3, abs=1e-3)
        scores.append(score)
    assert np.ptp(scores) > 0.01  # the distance matters


def test_metadata(model_and_dump, tmp_path):
    model, dump = model_and_dump
    folder = exported(dump, tmp_path / "out", "triattention")
    metadata = torch.load(folder / "triattention.pt", weights_only=True)["metadata"]
    rope = model.config.rope_parameters
    assert metadata["num_traces"] == TEXTS
    assert metadata["model_name"] == metadata["model_path"] == type(model).__name__
    assert (metadata["rope_style"], metadata["rope_type"]) == ("half", rope["rope_type"])
    assert metadata["rope_theta"] == rope["rope_theta"]
    first = "prompt_template use_chat_template system_prompt attn_implementation dtype"
    assert {*first.split()} <= {*metadata}  # loaders of the first release ask for all of them


def two_frequencies():
    """A model whose layers with a window have another base of RoPE."""
    return ARCHITECTURES["gemma3_text"].model()


def interleaved():
    config = {**ARCHITECTURES["llama"].config, "num_hidden_layers": 2}
    return Architecture("cohere", config).model()


@pytest.mark.parametrize(
    ("make", "words", "message"),
    [
        (two_frequencies, (), "RoPE has other frequencies than in layer 0"),
        (interleaved, FLAT, "--layout: tensorrt-llm pairs the halves of a vector"),
        (lambda: ARCHITECTURES["stablelm"].model(), (), "RoPE turns 8 of 16 dimensions"),
        (lambda: ARCHITECTURES["stablelm"].model(), FLAT, "RoPE turns 8 of 16 dimensions"),
    ],
)
def test_what_the_file_cannot_say_is_refused(tmp_path, make, words, message):
    dump = dump_of(make(), tmp_path / "dump")
    done = run_here("export", dump, tmp_path / "out", "--to", "triattention", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_interleaved_model(tmp_path):
    """Its bands are neighbouring dimensions, and the file says so."""
    model = interleaved()
    folder = exported(dump_of(model, tmp_path / "dump"), tmp_path / "out", "triattention")
    content = torch.load(folder / "triattention.pt", weights_only=True)
    assert content["metadata"]["rope_style"] == "interleaved"
    rows = queries_of(model)[0].reshape(2, -1, TEXTS * 24, 16)
    loaded = load_official(folder / "triattention.pt")
    expected = (rows[..., ::2] + 1j * rows[..., 1::2]).mean(axis=2)
    assert loaded.mean == pytest.approx(expected, abs=1e-4)
