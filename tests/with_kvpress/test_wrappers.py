"""`BudgetPress` as kvpress tests its own presses: alone, in wrappers, and in other caches."""

import importlib.util
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("kvpress")

from kvpress import (
    AdaKVPress,
    ChunkPress,
    ComposedPress,
    CriticalKVPress,
    DecodingPress,
    DuoAttentionPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KeyRerotationPress,
    KnormPress,
    LUKVPress,
    PerLayerCompressionPress,
    PrefillDecodingPress,
    SnapKVPress,
    ThinKPress,
)
from transformers import DynamicCache
from transformers.cache_utils import Cache, QuantizedCache, QuantizedLayer

from attention_plasticity.export.division import prune_curves
from attention_plasticity.kvpress import BudgetPress
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES, VOCABULARY

LAYERS, HEADS, TOKENS = 4, 2, 256


@pytest.fixture(scope="module")
def model():
    return ARCHITECTURES["llama"].model("sdpa")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Budgets of the tiny model, another one for every head."""
    values = np.linspace(0.2, 0.9, LAYERS * HEADS)
    curves = prune_curves(values, np.ones(LAYERS * HEADS, bool), "ramp")
    path = tmp_path_factory.mktemp("budget") / "budget.npy"
    np.save(path, curves.reshape(99, LAYERS, HEADS))
    return path


def tokens(n=TOKENS, texts=1):
    return torch.randint(8, VOCABULARY, (texts, n), generator=torch.Generator().manual_seed(n))


def compressed(model, press, cache=None):
    cache = DynamicCache() if cache is None else cache
    with torch.no_grad(), press(model):
        model(tokens(), past_key_values=cache)
    return cache


def masked_share(model):
    masked = [layer.self_attn.masked_key_indices for layer in model.model.layers]
    return sum(len(one[0]) for one in masked if one is not None) / (LAYERS * HEADS * TOKENS)


def alone(press):
    return press


def composed(press):
    """`ThinKPress` keeps all keys, and drops dimensions of them."""
    return ComposedPress([ThinKPress(key_channel_compression_ratio=0.2, window_size=8), press])


def before_decoding(press):
    return PrefillDecodingPress(prefilling_press=press)


@pytest.mark.parametrize("wrapper", [alone, composed, before_decoding])
@pytest.mark.parametrize("scorer", [KnormPress, ExpectedAttentionPress, SnapKVPress])
@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.6, 0.8])
def test_the_mean_masked_share_is_the_ratio(model, file, wrapper, scorer, ratio):
    inner = scorer(window_size=8) if scorer is SnapKVPress else scorer()
    cache = compressed(model, wrapper(BudgetPress(inner, file, ratio)))
    assert masked_share(model) == pytest.approx(ratio, abs=1e-2)
    assert cache.get_seq_length() == TOKENS


@pytest.mark.parametrize("ratio", [0.2, 0.8])
def test_other_scores(model, file, ratio):
    for inner in (KeyDiffPress(), CriticalKVPress(KnormPress())):
        compressed(model, BudgetPress(inner, file, ratio))
        assert masked_share(model) == pytest.approx(ratio, abs=1e-2)


@pytest.mark.parametrize(
    ("wrapper", "reason"),
    [
        (KeyRerotationPress, "KeyRerotationPress in this way: a head that drops a key leaves"),
        (ChunkPress, "ChunkPress in this way: budgets are shares of the whole context"),
        (AdaKVPress, "AdaKVPress in this way: it prunes the same number of keys in all heads"),
        (
            lambda press: ComposedPress([press, KnormPress(0.3)]),
            "ComposedPress in this way: it must be the last press",
        ),
        (
            lambda press: ComposedPress([KnormPress(0.3), press]),
            "its cache has 179 of 256 tokens, because of a window or of another press",
        ),
        (
            lambda press: PrefillDecodingPress(press, DecodingPress(KnormPress())),
            "PrefillDecodingPress in this way: kvpress overwrites masked keys",
        ),
        (
            lambda press: PerLayerCompressionPress(press, [0.5] * LAYERS),
            "PerLayerCompressionPress in this way: it prunes the same number",
        ),
    ],
)
def test_a_wrapper_that_cannot_hold_is_refused(model, file, wrapper, reason):
    with pytest.raises(ConfigError, match=reason):
        compressed(model, wrapper(BudgetPress(KnormPress(), file, 0.5)))
    assert not any(layer.self_attn._forward_hooks for layer in model.model.layers)


def test_decoding_is_refused(model, file):
    press = BudgetPress(KnormPress(), file)
    wrapper = DecodingPress(press, compression_interval=1, target_size=32)
    cache = DynamicCache()
    with torch.no_grad(), wrapper(model):
        model(tokens(64), past_key_values=cache)
        with pytest.raises(ConfigError, match="DecodingPress in this way: kvpress overwrites"):
            model(tokens(1), past_key_values=cache)


def test_a_press_that_masks_keys_before_is_refused(model, file):
    duo = DuoAttentionPress(head_compression_ratio=0.5)
    duo.load_attention_pattern = lambda model: (4, 8, np.arange(8.0).reshape(LAYERS, HEADS))
    press = ComposedPress([duo, BudgetPress(KnormPress(), file, 0.5)])
    with pytest.raises(ConfigError, match="the only one that drops keys"):
        compressed(model, press)


def test_two_presses_at_once_are_refused(model, file):
    press = BudgetPress(KnormPress(), file, 0.5)
    with (
        pytest.raises(ConfigError, match="cannot be used with KnormPress"),
        torch.no_grad(),
        press(model),
        KnormPress(0.3)(model),
    ):
        model(tokens(), past_key_values=DynamicCache())
    with pytest.raises(ConfigError, match="expected a ScorerPress, got BudgetPress"):
        BudgetPress(press, file)


class RoundedLayer(QuantizedLayer):
    """A quantised layer without a library: 8 bits per entry, one scale per tensor."""

    def _quantize(self, tensor, axis):
        scale = tensor.abs().max() / 127
        return (tensor / scale).round().to(torch.int8), scale

    def _dequantize(self, stored):
        return stored[0].float() * stored[1]


class RoundedCache(QuantizedCache):
    def __init__(self):
        Cache.__init__(self, layers=[RoundedLayer() for _ in range(LAYERS)])


@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.6, 0.8])
def test_a_quantised_cache(model, file, ratio):
    """The same keys are masked, also after the next tokens; the output differs by rounding."""
    press = BudgetPress(KnormPress(), file, ratio)
    plain = compressed(model, press)
    quantised = compressed(model, press, RoundedCache())
    assert masked_share(model) == pytest.approx(ratio, abs=1e-2)
    full = DynamicCache()
    with torch.no_grad():
        outputs = {}
        for name, cache in (("quantised", quantised), ("plain", plain)):
            outputs[name] = model(tokens(1), past_key_values=cache).logits
        model(tokens(), past_key_values=full)
        outputs["full"] = model(tokens(1), past_key_values=full).logits
    rounding = (outputs["quantised"] - outputs["plain"]).abs().max()
    assert rounding < 0.2 * (outputs["full"] - outputs["plain"]).abs().max()


@pytest.mark.parametrize("ratio", [0.5, 0.9])
def test_the_report_counts_the_masks(model, file, ratio):
    press = BudgetPress(KnormPress(), file, ratio, sink=2, window=4)
    with pytest.raises(ConfigError, match="no text was compressed in all layers yet"):
        press.report()
    texts = tokens(texts=3)
    with torch.no_grad(), press(model):
        model(texts, past_key_values=DynamicCache())
    report = press.report()
    kept = np.ones((LAYERS, 3, HEADS, TOKENS), bool)
    for layer, block in enumerate(model.model.layers):
        for text, head, key in zip(*block.self_attn.masked_key_indices, strict=True):
            kept[layer, text, head, key] = False
    assert report.tokens == TOKENS
    assert (report.kept[:, None] == kept.sum(axis=3)).all()
    assert report.lost == pytest.approx(1 - kept.any(axis=(0, 2)).mean(), abs=1e-6)
    lost = 1 - kept.any(axis=2).mean(axis=(1, 2))
    assert report.lost_in_layers == pytest.approx(lost, abs=1e-6)
    assert (report.lost > 0) == (ratio == 0.9)
    assert str(report).startswith(f"256 tokens; key heads keep {kept.sum(axis=3).min()} to ")
    press.compression_ratio = 0.0
    compressed(model, press)
    assert (press.report().lost, press.report().kept.min()) == (0.0, TOKENS)


def test_without_protected_tokens_the_patch_gives_the_same_budgets(model, file, tmp_path):
    diff = (Path(__file__).parents[2] / "examples" / "kvpress-budget-curves.diff").read_text()
    target = tmp_path / "kvpress" / "presses" / "lukv_press.py"
    target.parent.mkdir(parents=True)
    shutil.copy(inspect.getfile(LUKVPress), target)
    apply = ["git", "apply", "--exclude=README.md", "-"]
    subprocess.run(apply, input=diff, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "tests" / "presses" / "test_lukv_budget_curves.py").is_file()
    spec = importlib.util.spec_from_file_location("patched_lukv_press", target)
    patched = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = patched
    spec.loader.exec_module(patched)
    curves = np.load(file)
    masks = []
    for press in (
        patched.LUKVPress(KnormPress(), 0.5, sink=0, window=0, budget_curves=curves),
        BudgetPress(KnormPress(), file, 0.5, sink=0, window=0),
    ):
        compressed(model, press)
        masked = [layer.self_attn.masked_key_indices for layer in model.model.layers]
        masks.append([sorted(zip(*(one.tolist() for one in part), strict=True)) for part in masked])
    assert masks[0] == masks[1]
    with pytest.raises(ValueError, match="must have shape"):
        compressed(model, patched.LUKVPress(KnormPress(), 0.5, budget_curves=curves[:, :2]))
