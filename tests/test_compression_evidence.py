"""The script behind docs/findings-compression.md, on a tiny random llama."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from attention_plasticity.budget.evidence import EVIDENCE
from qk_sniffer import tap

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
N, VOCABULARY, LAYERS, K_HEADS = 128, 97, 2, 2
TEXTS = ("moby-dick/20", "jargon-file/20")


@pytest.fixture(autouse=True, scope="module")
def _scripts_can_be_imported() -> Iterator[None]:
    sys.path.insert(0, str(SCRIPTS))
    before = set(sys.modules)
    yield
    sys.path.remove(str(SCRIPTS))
    for name in set(sys.modules) - before:
        if name.startswith(("findings_", "compression_")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def plan(_scripts_can_be_imported: None) -> Any:
    from compression_conditions import SMALL

    return replace(
        SMALL,
        context=N,
        first=32,
        near=8,
        window=12,
        calibration_texts=6,
        texts_per_book=1,
        shares=(0.5, 0.25),
        random_orders=3,
        random_halves=3,
        head_step=1,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": K_HEADS}
    config = LlamaConfig(**sizes, **heads, num_hidden_layers=LAYERS, max_position_embeddings=N)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "proj" in name:
                weight.mul_(8.0)  # attention that is not uniform
    folder = tmp_path_factory.mktemp("demo")
    model.save_pretrained(folder / "model" / "tiny")
    return folder


@pytest.fixture(scope="module")
def model(checkpoint: Path, _scripts_can_be_imported: None) -> Any:
    from compression_eviction import load_model

    return load_model(checkpoint / "model" / "tiny", "cpu")


@pytest.fixture(scope="module")
def prepared(checkpoint: Path, plan: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tokens, values of heads and rankings."""
    import compression_preparation
    from compression_inputs import Inputs

    rng = np.random.default_rng(0)
    texts = [rng.integers(0, VOCABULARY, N).tolist() for _ in range(6)]
    plain = LlamaForCausalLM.from_pretrained(checkpoint / "model" / "tiny")
    with tap(plain, attention=True, attended_keys=16, min_bucket_size=8) as taken:
        for ids in texts:
            plain(torch.tensor([ids]))
    taken.save(checkpoint / "dump")
    folder = tmp_path_factory.mktemp("evidence")
    evaluated = {name: rng.integers(0, VOCABULARY, N).tolist() for name in TEXTS}
    calibration = {f"moby-dick/{number:02}": texts[number] for number in range(2)}
    Inputs(folder).write_tokens({"calibration": calibration, "evaluation": evaluated})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression_preparation, "capture_demo", lambda *_: checkpoint / "dump")
        patch.setattr(compression_preparation, "available_cpus", lambda: 1)
        patch.setenv("PYTHONPATH", str(SCRIPTS))
        compression_preparation.prepare(checkpoint, Inputs(folder), plan, "cpu")
    return folder


def _plain_logits(model: Any, tokens: Any, visible: Any) -> Any:
    """(n, vocabulary) logits from full attention weights, set to zero where keys are evicted.

    `visible` is (layers, k_heads, n, n).
    """
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    inner, ids = model.model, torch.from_numpy(tokens)[None]
    x = inner.embed_tokens(ids)
    turns = inner.rotary_emb(x, torch.arange(len(tokens))[None])
    for number, layer in enumerate(inner.layers):
        y, attention = layer.input_layernorm(x), layer.self_attn
        q, k, v = (
            one(y)[0].reshape(len(tokens), -1, attention.head_dim).transpose(0, 1)
            for one in (attention.q_proj, attention.k_proj, attention.v_proj)
        )  # (heads, n, d)
        q, k = (one[0] for one in apply_rotary_pos_emb(q[None], k[None], *turns))
        heads = []
        for head in range(len(q)):
            own = head // (len(q) // len(k))
            logits = q[head] @ k[own].T * attention.scaling  # (n, n)
            causal = torch.ones(logits.shape, dtype=torch.bool).tril()
            weights = logits.masked_fill(~causal, -torch.inf).softmax(dim=-1)
            weights = weights * torch.from_numpy(visible[number, own])
            heads.append(weights / weights.sum(dim=-1, keepdim=True) @ v[own])
        x = x + attention.o_proj(torch.stack(heads, dim=1).flatten(1))[None]
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(inner.norm(x))[0]


def _visible(kept: Any, near: Any) -> Any:
    """(layers, k_heads, n, n) in plain loops."""
    found = np.zeros((LAYERS, K_HEADS, N, N), np.bool_)
    for layer, head in np.ndindex(LAYERS, K_HEADS):
        for t in range(N):
            for j in range(t + 1):
                found[layer, head, t, j] = kept[layer, head, j] or t - j < near[layer, head]
    return found


def _random_eviction(seed: int, near: int) -> Any:
    from compression_eviction import Eviction

    kept = np.random.default_rng(seed).random((LAYERS, K_HEADS, N)) < 0.3
    return Eviction(kept, np.array([[near, near + 3], [N, near]]))


def test_an_evicted_model_is_the_full_one_with_weights_set_to_zero(model: Any) -> None:
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, N)
    from compression_eviction import EvaluatedText, _Visible

    eviction = _random_eviction(0, near=8)
    with torch.inference_mode():
        expected = _plain_logits(model, tokens, _visible(eviction.kept, eviction.near))
        full = _plain_logits(model, tokens, np.ones((LAYERS, K_HEADS, N, N), np.bool_))
        visible = _Visible(eviction, torch.device("cpu"))
        found = model(torch.from_numpy(tokens)[None], use_cache=False, visible=visible).logits[0]
    assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    assert not np.allclose(expected.numpy(), full.numpy(), atol=1e-2)  # keys matter
    outcome = EvaluatedText(model, tokens, 32).outcome(eviction)
    kl, loss = _plain_outcome(full.numpy(), expected.numpy(), tokens)
    assert outcome.kl == pytest.approx(kl, abs=1e-5)
    assert outcome.loss_change == pytest.approx(loss, abs=1e-5)


def _plain_outcome(full: Any, evicted: Any, tokens: Any) -> tuple[float, float]:
    """Mean KL divergence and change of the loss from position 32 on, as plain sums."""
    kl, loss = [], []
    for t in range(32, N - 1):
        p, q = (np.exp(one[t].astype(np.float64)) for one in (full, evicted))
        p, q = p / p.sum(), q / q.sum()
        kl.append(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True)))
        loss.append(np.log(p[tokens[t + 1]]) - np.log(q[tokens[t + 1]]))
    return float(np.mean(kl)), float(np.mean(loss))


def test_a_model_that_keeps_all_keys_does_not_change(model: Any) -> None:
    from compression_eviction import EvaluatedText, Eviction, Outcome

    text = EvaluatedText(model, np.random.default_rng(2).integers(0, VOCABULARY, N), 32)
    kept = np.ones((LAYERS, K_HEADS, N), np.bool_)
    near = np.full((LAYERS, K_HEADS), 8)
    assert text.outcome(Eviction(kept, near)) == Outcome(0.0, 0.0)
    assert text.outcome(Eviction(~kept, np.full_like(near, N))) == Outcome(0.0, 0.0)
    almost = kept.copy()
    almost[..., 1] = False  # the mask is applied
    assert 0.0 < text.outcome(Eviction(almost, near)).kl < 0.5


def test_recorded_attention_is_that_of_plain_loops(checkpoint: Path, model: Any) -> None:
    from compression_eviction import Received, recorded

    tokens = np.random.default_rng(3).integers(0, VOCABULARY, N)
    received = recorded(model, tokens, Received(first=32, near=8, sinks=4))
    eager = LlamaForCausalLM.from_pretrained(
        checkpoint / "model" / "tiny", attn_implementation="eager"
    )
    with torch.inference_mode():
        output = eager(torch.from_numpy(tokens)[None], output_attentions=True)
    for layer, weights in enumerate(output.attentions):
        expected = np.zeros((K_HEADS, N))
        for head, t, j in np.ndindex(4, N, N):
            if t >= 32 and t - j >= 8 and j >= 4:
                expected[head // 2, j] += float(weights[0, head, t, j])
        assert received.attention[layer] == pytest.approx(expected, abs=1e-4)


def test_the_keys_of_a_condition(plan: Any) -> None:
    """A quarter of the keys that can be evicted, and the last tokens, are seen."""
    from compression_conditions import BEST_STATIC, Condition, eviction, ranks_of

    rng = np.random.default_rng(4)
    scores = rng.normal(size=(LAYERS, K_HEADS, N))
    ranks = {BEST_STATIC: ranks_of(scores, plan)}
    heads = {"static_error": rng.random((LAYERS, K_HEADS))}
    found = eviction(Condition("scores", BEST_STATIC, 0.25), plan, ranks, heads, 0)
    number = round(0.25 * (N - 4 - 8))
    for layer, head in np.ndindex(LAYERS, K_HEADS):
        places = sorted(range(4, N - 8), key=lambda j: -scores[layer, head, j])[:number]
        assert set(np.flatnonzero(found.kept[layer, head])) == {0, 1, 2, 3, *places}
    assert (found.near == 8).all()


def test_budgets_follow_the_ranks_of_heads(plan: Any) -> None:
    from compression_conditions import BUDGET_SCORE, Condition, budgets, eviction, ranks_of

    values = np.array([[3.0, 1.0], [2.0, 4.0]])
    assert budgets(values, 0.25, 0.8).ravel() == pytest.approx(
        [0.25 * one for one in (0.2 + 1.6 * 2 / 3, 0.2, 0.2 + 1.6 / 3, 1.8)]
    )
    ties = budgets(np.array([[1.0, 1.0], [0.0, 2.0]]), 0.5, 0.8).ravel()
    assert ties == pytest.approx([0.5, 0.5, 0.1, 0.9])
    ranks = {BUDGET_SCORE: ranks_of(np.random.default_rng(5).normal(size=(2, 2, N)), plan)}
    heads = {"static_error": values}
    found = eviction(Condition("budgets", "static_error", 0.25), plan, ranks, heads, 0)
    kept = found.kept.sum(axis=-1) - 4
    expected = [[round(0.25 * one * (N - 12)) for one in row] for row in _factors(values)]
    assert kept.tolist() == expected


def _factors(values: Any) -> list[list[float]]:
    order = sorted(values.ravel().tolist())
    return [[0.2 + 1.6 * order.index(one) / 3 for one in row] for row in values.tolist()]


def test_windows_and_single_heads(plan: Any) -> None:
    from compression_conditions import BEST_STATIC, Condition, eviction, ranks_of

    heads = {"static_error": np.array([[3.0, 1.0], [2.0, 4.0]])}
    ranks = {BEST_STATIC: ranks_of(np.zeros((2, 2, N)), plan)}

    def near(condition: Any) -> list[list[int]]:
        found = eviction(condition, plan, ranks, heads, 0)
        if condition.part != "head":
            assert (found.kept.sum(axis=-1) == 4).all()
        return [[int(one) for one in row] for row in found.near]

    assert near(Condition("window")) == [[12, 12], [12, 12]]
    assert near(Condition("window_half", "static_error")) == [[N, 12], [12, N]]
    assert near(Condition("window_half", "reverse_static_error")) == [[12, N], [N, 12]]
    assert near(Condition("window_head", head=(0, 1))) == [[N, 12], [N, N]]
    assert near(Condition("head", BEST_STATIC, 0.25, head=(1, 0))) == [[N, N], [8, N]]


def test_names_of_conditions_are_different(plan: Any) -> None:
    from compression_conditions import Plan, phases

    names = [one.name for phase in phases(Plan(), (30, 3)) for one in phase]
    assert len(names) == len(set(names)) > 1000


def test_holm_and_ranks() -> None:
    from compression_statistics import correlation, holm, rank_p, text_interval

    p = np.array([0.01, 0.04, 0.03, 0.005])
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # 3·.01, max(.06, .04), 2·.03, 4·.005
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
    assert rank_p(1.0, np.array([0.5, 1.0, 2.0, 3.0])) == pytest.approx(3 / 5)
    assert rank_p(0.1, np.full(50, 1.0)) == pytest.approx(1 / 51)
    found = text_interval(np.array([1.0, 2.0, 3.0]))
    assert found == pytest.approx((2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-5)
    values = np.arange(20.0)
    assert correlation(values, values**3).interval == pytest.approx((1.0, 1.0, 1.0))
    rng = np.random.default_rng(6)
    third = rng.normal(size=400)
    one, other = (third + 0.3 * rng.normal(size=400) for _ in range(2))
    assert correlation(one, other).interval.low > 0.8
    assert abs(correlation(one, other, third).interval.value) < 0.15


def test_rankings_of_a_text(prepared: Path, plan: Any) -> None:
    """Every score ranks all keys that can be evicted."""
    from compression_conditions import SCORES
    from compression_inputs import Inputs

    for text in TEXTS:
        ranks = Inputs(prepared).ranks(text)
        assert tuple(ranks) == SCORES
        for score, places in ranks.items():
            assert places.shape == (LAYERS, K_HEADS, N), score
            for row in places.reshape(-1, N):
                assert sorted(row[4 : N - 8]) == list(range(N - 12))
    heads = Inputs(prepared).heads()
    assert all(values.shape == (LAYERS, K_HEADS) for values in heads.values())


def test_a_killed_run_continues_with_the_same_tables(
    model: Any, prepared: Path, plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    import compression_evidence
    from compression_eviction import EvaluatedText
    from compression_tables import write_all

    plan = replace(plan, other_orders=2)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        shutil.copytree(prepared, folder)
    compression_evidence.evaluate(model, whole, plan)
    calls, real = 0, EvaluatedText.outcome

    def stop(self: Any, eviction: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 70:
            raise KeyboardInterrupt
        return real(self, eviction)

    with monkeypatch.context() as patch:
        patch.setattr(EvaluatedText, "outcome", stop)
        with pytest.raises(KeyboardInterrupt):
            compression_evidence.evaluate(model, killed, plan)
    lines = (killed / "results.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 70
    (killed / "results.jsonl").write_text("".join(lines) + lines[0][:20])  # a torn last line
    compression_evidence.evaluate(model, killed, plan)
    for folder in (whole, killed):
        write_all(folder, plan, None)
    names = sorted(
        path.name for path in whole.iterdir() if path.suffix in (".csv", ".md", ".jsonl")
    )
    assert "budgets-25.md" in names
    for name in names:
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    with pytest.raises(SystemExit, match="other settings"):
        compression_evidence.evaluate(model, whole, replace(plan, near=9))


def test_sentences_of_budgets_have_the_numbers_of_the_tables() -> None:
    """How many of the random orders are worse than each order, in `budget` and in the guide."""
    from compression_words import words

    folder = ROOT / "results" / "smollm2-135m" / "compression"
    tables = [
        pd.read_csv(folder / f"budgets-{share}.csv").set_index("budgets by")
        for share in (50, 25, 10)
    ]
    guide = (ROOT / "docs" / "guide-decisions.md").read_text(encoding="utf-8")
    for order, sentence in EVIDENCE.items():
        if order == "uniform":
            kl = [f"{table.loc['uniform', 'KL']:.3f}" for table in tables]
            assert f"{kl[0]}, {kl[1]} and {kl[2]}" in sentence
            continue
        better = [int(table.loc[words(order), "better of 200 random"]) for table in tables]
        worse = [200 - one for one in better]
        counts = f"{worse[0]}, {worse[1]} and {worse[2]}" if any(better) else "all 200"
        assert f"{counts} changed the output more" in sentence
        assert f"| `{order}` | {better[0]} / {better[1]} / {better[2]} |" in guide
