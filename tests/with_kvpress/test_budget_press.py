"""`BudgetPress` in real kvpress. `make test-oldest` has kvpress; it needs transformers < 5.3."""

import json
import math
import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("kvpress")

from kvpress import (
    AdaKVPress,
    CriticalKVPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    LUKVPress,
    ObservedAttentionPress,
    SnapKVPress,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AttentionInterface, DynamicCache, PreTrainedTokenizerFast, pipeline

from attention_plasticity.export.division import PERCENTS, prune_curves
from attention_plasticity.kvpress import BudgetPress
from qk_toolkit.errors import ConfigError
from tiny_models import ARCHITECTURES, VOCABULARY

LAYERS, HEADS, NAME = 4, 2, "tiny-llama"


@pytest.fixture(scope="module")
def model():
    model = ARCHITECTURES["llama"].model("sdpa")
    model.config.name_or_path = f"owner/{NAME}"
    return model


def budget_file(folder, curves=None, **facts):
    """A budget of the tiny model, by default with an own share for every head."""
    if curves is None:
        values = np.linspace(0.2, 0.9, LAYERS * HEADS)
        curves = prune_curves(values, np.ones(LAYERS * HEADS, bool))
        curves = curves.reshape(99, LAYERS, HEADS)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "budget.npy", curves)
    if facts:
        (folder / "PROVENANCE.json").write_text(json.dumps(facts))
    return folder / "budget.npy"


def flat(folder):
    return budget_file(folder, np.broadcast_to(PERCENTS[:, None, None], (99, LAYERS, HEADS)))


def tokens(n, texts=1):
    return torch.randint(8, VOCABULARY, (texts, n), generator=torch.Generator().manual_seed(n))


def masks(model, press, ids):
    """(texts, key heads, n) keys of every layer that are masked, and the cache."""
    cache = DynamicCache()
    with torch.no_grad(), press(model):
        model(ids, past_key_values=cache)
    found = []
    for layer in model.model.layers:
        masked = torch.zeros(len(ids), HEADS, ids.shape[1], dtype=torch.bool)
        if layer.self_attn.masked_key_indices is not None:
            masked[layer.self_attn.masked_key_indices] = True
        found.append(masked)
    return found, cache


def following(model, cache, start, number=3):
    """Logits of tokens after a context, read one by one."""
    found = []
    for place, token in enumerate(tokens(number)[0]):
        with torch.no_grad():
            position = torch.tensor([[start + place]])
            ids = token.reshape(1, 1)
            found.append(model(ids, past_key_values=cache, position_ids=position).logits[0, 0])
    return torch.stack(found)


@pytest.mark.parametrize("n", [64, 101])
@pytest.mark.parametrize("ratio", [0.01, 0.125, 0.5, 0.9, 0.99])
def test_kept_keys_equal_the_file_to_one_key(model, tmp_path, n, ratio):
    file = budget_file(tmp_path)
    found, _ = masks(model, BudgetPress(KnormPress(), file, ratio, 0, 0), tokens(n, texts=2))
    curves = np.concatenate([np.zeros((1, LAYERS, HEADS)), np.load(file)])
    low = math.floor(100 * ratio + 1e-9)
    part = 100 * ratio - low
    shares = (1 - part) * curves[low] + part * curves[min(low + 1, 99)]
    for layer, masked in enumerate(found):
        pruned = masked.sum(dim=-1).numpy()  # (texts, key heads)
        assert np.abs(pruned - np.maximum(shares[layer] * n, 0.0)).max() < 1.0 + 1e-6
        assert (pruned < n).all()
    total = sum(int(masked.sum()) for masked in found) / (2 * LAYERS * HEADS * n)
    assert total == pytest.approx(ratio, abs=0.5 / n + 1.0 / n)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.8, 0.9, 0.95])
def test_protected_tokens_are_no_part_of_what_is_divided(model, tmp_path, ratio):
    n, sink, window, file = 100, 2, 8, budget_file(tmp_path)
    found, _ = masks(model, BudgetPress(KnormPress(), file, ratio, sink, window), tokens(n))
    kept = np.array([(~masked[0]).sum(dim=-1).numpy() for masked in found])  # (layers, key heads)
    assert kept.mean() == pytest.approx((1.0 - ratio) * n, abs=0.5)
    assert kept.min() >= min(sink + window, round((1.0 - ratio) * n) - 1)
    if ratio > 0.9:  # there is nothing to divide
        assert np.ptp(kept) <= 1
        return
    curves = np.concatenate(
        [np.zeros((1, LAYERS, HEADS)), np.load(file), np.ones((1, LAYERS, HEADS))]
    )
    inner = 100 * ratio * n / (n - sink - window)  # percent of the other keys that are pruned
    low = min(math.floor(inner + 1e-9), 99)
    share = curves[low] + (inner - low) * (curves[low + 1] - curves[low])
    expected = sink + window + (1.0 - share) * (n - sink - window)
    assert np.abs(kept - expected).max() < 1.0 + 1e-4


def test_lukvpress_keeps_the_same_numbers(model, tmp_path):
    file = budget_file(tmp_path)
    for n, ratio in ((64, 0.5), (97, 0.75), (80, 0.25), (33, 0.9)):
        other = LUKVPress(KnormPress(), compression_ratio=ratio)
        other._budget_curves = np.load(file)
        own, _ = masks(model, BudgetPress(KnormPress(), file, ratio, 0, 0), tokens(n))
        theirs, _ = masks(model, other, tokens(n))
        for one, two in zip(own, theirs, strict=True):
            assert one.sum(dim=-1).tolist() == two.sum(dim=-1).tolist()


@pytest.mark.parametrize("scorer", [KnormPress, KeyDiffPress, ExpectedAttentionPress, SnapKVPress])
def test_a_flat_curve_gives_the_output_of_the_scorers_own_press(model, tmp_path, scorer):
    n, how = 64, {"window_size": 8} if scorer is SnapKVPress else {}
    press = BudgetPress(scorer(**how), flat(tmp_path), 0.5, sink=0, window=0)
    _, cache = masks(model, press, tokens(n))
    own = DynamicCache()
    with torch.no_grad(), scorer(compression_ratio=0.5, **how)(model):
        model(tokens(n), past_key_values=own)
    assert own.get_seq_length() == n // 2
    expected = following(model, own, n)
    for layer in model.model.layers:
        assert layer.self_attn.masked_key_indices is None  # the other press ran a prefill
    found, cache = masks(model, press, tokens(n))
    assert following(model, cache, n).numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    assert all(int(masked.sum()) == HEADS * n // 2 for masked in found)


def _explicit(module, query, key, value, mask, scaling, **_):
    """Attention with the weights of hidden keys set to zero before they are normalised."""
    group = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(group, dim=1) for one in (key, value))
    logits = query @ key.transpose(2, 3) * scaling  # (1, heads, 1, n)
    hidden = module.hidden.repeat_interleave(group, dim=1)[:, :, None]  # (1, heads, 1, context)
    weights = logits.exp()
    weights[..., : hidden.shape[-1]] *= ~hidden
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return (weights @ value).transpose(1, 2).contiguous(), None


def test_masked_keys_get_no_attention(model, tmp_path):
    n = 48
    found, cache = masks(model, BudgetPress(KeyDiffPress(), budget_file(tmp_path), 0.5), tokens(n))
    full = DynamicCache()
    for number, layer in enumerate(cache.layers):
        full.update(layer.keys.clone(), layer.values.clone(), number)
    output = following(model, cache, n)
    AttentionInterface.register("explicit", _explicit)
    other = ARCHITECTURES["llama"].model("sdpa")
    other.load_state_dict(model.state_dict())
    other.set_attn_implementation("explicit")
    for layer, masked in zip(other.model.layers, found, strict=True):
        layer.self_attn.hidden = masked
    expected = following(other, full, n)
    assert output.numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    for layer in other.model.layers:
        layer.self_attn.hidden = torch.zeros(1, HEADS, n, dtype=torch.bool)
    assert (following(other, full, n) - expected).abs().max() > 1e-3  # the mask matters


def test_sinks_and_the_last_tokens_are_kept_first(model, tmp_path):
    n, file = 50, budget_file(tmp_path)
    found, _ = masks(model, BudgetPress(KnormPress(), file, 0.8, sink=2, window=5), tokens(n))
    for masked in found:
        kept = n - masked.sum(dim=-1)
        for head in range(HEADS):
            first = min(2, int(kept[0, head]))
            assert not masked[0, head, :first].any()
            recent = min(5, int(kept[0, head]) - first)
            assert not masked[0, head, n - recent :].any()
    found, _ = masks(model, BudgetPress(KnormPress(), file, 0.9, sink=2, window=n), tokens(n))
    for masked in found:  # a window of all tokens keeps the last ones
        kept = int((~masked[0, 0]).sum())
        assert (~masked[0, 0]).nonzero().flatten().tolist() == sorted(
            {*range(min(2, kept)), *range(n - max(kept - 2, 0), n)}
        )


def test_the_order_does_not_depend_on_the_size_of_scores(model, tmp_path):
    class Huge(KnormPress):
        def score(self, *given):
            return super().score(*given).double() * 1e30

    file, ids = budget_file(tmp_path), tokens(40)
    one, _ = masks(model, BudgetPress(KnormPress(), file, 0.6), ids)
    two, _ = masks(model, BudgetPress(Huge(), file, 0.6), ids)
    assert all(torch.equal(*pair) for pair in zip(one, two, strict=True))


def test_layers_without_pruned_keys_are_not_scored(model, tmp_path):
    curves = np.broadcast_to(PERCENTS[:, None, None], (99, LAYERS, HEADS)).copy()
    curves[:, [0, 2]] = 0.0
    scored = []

    class Recorded(KnormPress):
        def score(self, module, *given):
            scored.append(module.layer_idx)
            return super().score(module, *given)

    press = BudgetPress(Recorded(), budget_file(tmp_path, curves), 0.5)
    found, _ = masks(model, press, tokens(32))
    assert scored == [1, 3]
    assert [int(masked.sum()) for masked in found] == [0, 32, 0, 32]
    masks(model, BudgetPress(Recorded(), press.file), tokens(32))
    assert scored == [1, 3]  # without compression nothing is scored


def test_the_pipeline_of_kvpress_answers(model, tmp_path):
    words = {f"w{number}": number for number in range(VOCABULARY)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="w1", eos_token="w2")
    pipe = pipeline("kv-press-text-generation", model=model, tokenizer=tokenizer, device="cpu")
    context = " ".join(f"w{number}" for number in tokens(60)[0].tolist())
    press = BudgetPress(KnormPress(), budget_file(tmp_path), 0.5)
    found = pipe(context, question="w9", press=press, max_new_tokens=3)
    assert len(found["answer"].split()) == 3
    masked = [layer.self_attn.masked_key_indices for layer in model.model.layers]
    pruned = sum(0 if one is None else len(one[0]) for one in masked)
    number = len(tokenizer.encode(tokenizer.bos_token + context, add_special_tokens=False))
    assert pruned == pytest.approx(0.5 * number * LAYERS * HEADS, abs=LAYERS)


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        (
            np.zeros((98, LAYERS, HEADS)),
            r"expected an array of the shape \(99, layers, key heads\)",
        ),
        (np.zeros((99, LAYERS)), "got"),
        (np.full((99, LAYERS, HEADS), np.nan), "expected shares from 0 to 1"),
        (np.full((99, LAYERS, HEADS), 1.01), "expected shares from 0 to 1"),
        (np.zeros((99, LAYERS, HEADS), np.int64), "expected shares from 0 to 1"),
    ],
)
def test_a_file_with_other_numbers(tmp_path, curves, message):
    with pytest.raises(ConfigError, match=message):
        BudgetPress(KnormPress(), budget_file(tmp_path, curves), 0.5)


def test_a_file_that_is_no_array(tmp_path):
    path = tmp_path / "budget.npy"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        BudgetPress(KnormPress(), path, 0.5)
    for content in (b"", b"text", b"PK\x03\x04garbage", pickle.dumps([1, 2])):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="cannot be read as an array"):
            BudgetPress(KnormPress(), path, 0.5)
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="cannot be read as an array"):
        BudgetPress(KnormPress(), path, 0.5)
    np.savez(tmp_path / "two.npz", a=np.zeros(2))
    with pytest.raises(ConfigError, match="expected an array of the shape"):
        BudgetPress(KnormPress(), tmp_path / "two.npz", 0.5)


def test_wrong_arguments(tmp_path):
    file = budget_file(tmp_path)
    with pytest.raises(ConfigError, match="expected a ScorerPress, got AdaKVPress"):
        BudgetPress(AdaKVPress(KnormPress()), file, 0.5)
    for ratio in (-0.1, 0.995, math.nan):
        with pytest.raises(ConfigError, match=r"compression_ratio: expected 0 to 0\.99"):
            BudgetPress(KnormPress(), file, ratio)
    with pytest.raises(ConfigError, match="compression_ratio: expected 0 to"):
        BudgetPress(KnormPress(), file, "0.5")
    for sink, window in ((-1, 8), (4, 64.0)):
        with pytest.raises(ConfigError, match="expected integers of 0 or more, got"):
            BudgetPress(KnormPress(), file, 0.5, sink=sink, window=window)
    with pytest.raises(ConfigError, match="ObservedAttentionPress needs eager attention"):
        BudgetPress(ObservedAttentionPress(), file, 0.5)


def test_the_ratio_may_be_changed_later(model, tmp_path):
    press = BudgetPress(KnormPress(), budget_file(tmp_path))
    for ratio in (0.5, 0.25):
        press.compression_ratio = ratio
        found, _ = masks(model, press, tokens(64))
        pruned = sum(int(masked.sum()) for masked in found)
        assert pruned == pytest.approx(ratio * 64 * LAYERS * HEADS, abs=LAYERS)
    press.compression_ratio = 1.0
    assert "compression_ratio: expected 0 to 0.99, got 1.0" in refusal(model, press)


def test_scores_that_depend_on_the_compression(model, tmp_path):
    inner = CriticalKVPress(KnormPress())
    masks(model, BudgetPress(inner, flat(tmp_path), 0.75), tokens(32))
    assert inner.compression_ratio == inner.press.compression_ratio == 0.75


def test_a_cache_with_a_window_is_not_pruned(tmp_path):
    """Its keys are the last ones only, so that places of masked keys would be wrong."""
    other = ARCHITECTURES["mistral"].model("sdpa")
    assert other.config.sliding_window is not None
    config, ids = other.config, tokens(3 * other.config.sliding_window)
    press = BudgetPress(KnormPress(), flat(tmp_path), 0.5, any_model=True)
    with pytest.raises(ConfigError, match="because of a window"), torch.no_grad(), press(other):
        other(ids, past_key_values=DynamicCache(config=config))
    kept = BudgetPress(KnormPress(), budget_file(tmp_path, np.zeros((99, LAYERS, HEADS))), 0.5)
    with torch.no_grad(), kept(other):
        other(ids, past_key_values=DynamicCache(config=config))


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"model": 3}'])
def test_a_damaged_provenance(model, tmp_path, content):
    file = budget_file(tmp_path)
    (tmp_path / "PROVENANCE.json").write_text(content)
    with (
        pytest.raises(ConfigError, match="any_model=True"),
        BudgetPress(KnormPress(), file, 0.5)(model),
    ):
        pass
    masks(model, BudgetPress(KnormPress(), file, 0.5, any_model=True), tokens(16))


def refusal(model, press):
    with pytest.raises(ConfigError) as caught, press(model):
        pass
    assert not any(layer.self_attn._forward_hooks for layer in model.model.layers)
    return str(caught.value)


def test_another_model(model, tmp_path):
    layout = budget_file(tmp_path / "layout", np.zeros((99, LAYERS, HEADS + 1)))
    message = refusal(model, BudgetPress(KnormPress(), layout, 0.5))
    assert "of 4 layers with 3 key heads; the model has 4 layers with 2 key heads" in message
    other = budget_file(tmp_path / "other", model="owner/Another-1B")
    message = refusal(model, BudgetPress(KnormPress(), other, 0.5))
    assert f"has budgets of owner/Another-1B, the model is owner/{NAME}" in message
    assert "any_model=True" in message
    masks(model, BudgetPress(KnormPress(), other, 0.5, any_model=True), tokens(16))
    same = budget_file(tmp_path / "same", model=f"Owner/{NAME.upper()}")
    masks(model, BudgetPress(KnormPress(), same, 0.5), tokens(16))


def test_attention_that_cannot_mask_keys(tmp_path):
    file = budget_file(tmp_path)
    eager = ARCHITECTURES["llama"].model("eager")
    message = refusal(eager, BudgetPress(KnormPress(), file, 0.5))
    assert "attention 'eager': kvpress cannot mask keys of single heads" in message
    AttentionInterface.register("unknown_to_kvpress", _explicit)
    other = ARCHITECTURES["llama"].model("sdpa")
    other.set_attn_implementation("unknown_to_kvpress")
    message = refusal(other, BudgetPress(KnormPress(), file, 0.5))
    assert "attention 'unknown_to_kvpress'" in message
    assert "attn_implementation='sdpa'" in message
