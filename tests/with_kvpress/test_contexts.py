"""Contexts of the eviction study against kvpress used as its users do."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

pytest.importorskip("kvpress")

from kvpress import (
    AdaKVPress,
    CriticalAdaKVPress,
    KeyDiffPress,
    KnormPress,
    PyramidKVPress,
    SnapKVPress,
)
from transformers import DynamicCache

from attention_plasticity.kvpress import BudgetPress
from findings.eviction.contexts import (
    Answers,
    Contexts,
    KnownScores,
    OneByOne,
    Questions,
    load_model,
)
from findings.eviction.presses import pyramid_curves
from tiny_models import ARCHITECTURES, VOCABULARY
from tiny_texts import tiny_tokenizer

CONTEXT, FOLLOWING, TEXTS = 48, 5, 2


@pytest.fixture(scope="module")
def model():
    return ARCHITECTURES["llama"].model("sdpa")


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(8, VOCABULARY, (TEXTS, CONTEXT + FOLLOWING))


def plain_outcome(model, ids, press):
    """KL, change of the loss and right tokens of one text, token by token, as plain sums."""
    context, after = torch.from_numpy(ids[None, :CONTEXT]), ids[CONTEXT:]
    logits = []
    for one in (None, press):
        cache = DynamicCache()
        with torch.no_grad():
            if one is None:
                model(context, past_key_values=cache)
            else:
                with one(model):
                    model(context, past_key_values=cache)
            found = []
            for place, token in enumerate(after[:-1]):
                position = torch.tensor([[CONTEXT + place]])
                given = torch.tensor([[token]])
                found.append(model(given, past_key_values=cache, position_ids=position).logits)
        logits.append(torch.cat(found, dim=1)[0].double())
    kl = loss = right = 0.0
    for full, own, target in zip(*logits, after[1:], strict=True):
        p, q = full.softmax(-1), own.softmax(-1)
        kl += float((p * (p / q).log()).sum())
        loss += float(p[target].log() - q[target].log())
        right += float(own.argmax() == target)
    n = FOLLOWING - 1
    return kl / n, loss / n, right / n


def flat_file(folder):
    curves = np.random.default_rng(1).uniform(0.2, 0.8, (99, 4, 2))
    np.save(folder / "budget.npy", curves)
    return folder / "budget.npy"


def test_outcomes_are_those_of_the_press_as_a_context_manager(model, tokens, tmp_path):
    contexts, file = Contexts(model, tokens, CONTEXT), flat_file(tmp_path)
    known = KnownScores(0.5, contexts.scores(KeyDiffPress(), 0))
    for press, plain in (
        (known, KeyDiffPress(0.5)),
        (AdaKVPress(known), AdaKVPress(KeyDiffPress(0.5))),
        (
            BudgetPress(known, file, 0.5, any_model=True),
            BudgetPress(KeyDiffPress(), file, 0.5, any_model=True),
        ),
    ):
        for text, outcome in zip(tokens, contexts.outcomes(press), strict=True):
            assert tuple(outcome) == pytest.approx(plain_outcome(model, text, plain), abs=1e-5)


def test_without_a_press_nothing_moves(model, tokens):
    for outcome in Contexts(model, tokens, CONTEXT).outcomes(None):
        assert outcome.kl == outcome.loss_change == 0.0


def test_scores_are_not_changed_by_a_press(model, tokens):
    contexts = Contexts(model, tokens, CONTEXT)
    scores = contexts.scores(KnormPress(), 0)
    before = [one.clone() for one in scores]
    contexts.outcomes(AdaKVPress(KnownScores(0.5, scores)))
    assert all(torch.equal(*pair) for pair in zip(before, scores, strict=True))


def test_pyramid_budgets_are_those_of_its_press(model, tokens, tmp_path):
    contexts, how = Contexts(model, tokens, CONTEXT), {"window_size": 4, "beta": 4}
    curves = pyramid_curves(CONTEXT, 4, 2, **how)
    assert len(set(curves[49, :, 0])) == 4  # layers differ
    np.save(tmp_path / "pyramid.npy", curves)
    scores = contexts.scores(SnapKVPress(window_size=4), 0)
    press = BudgetPress(
        KnownScores(0.5, scores), tmp_path / "pyramid.npy", 0.5, sink=0, window=0, any_model=True
    )
    plain = PyramidKVPress(0.5, **how)
    for text, outcome in zip(tokens, contexts.outcomes(press), strict=True):
        assert tuple(outcome) == pytest.approx(plain_outcome(model, text, plain), abs=1e-5)


@pytest.mark.parametrize("length", [2, 4])
def test_questions_do_not_see_each_other(model, tokens, tmp_path, length):
    """The same as asking each question alone, with the full context and with a compressed one."""
    asked = np.random.default_rng(2).integers(8, VOCABULARY, (len(tokens), 2, length))
    answers = np.zeros_like(asked)
    answers[:, :, 1:] = 1
    if length > 2:
        asked[:, 1, 3], answers[:, 1, 3] = -1, 0  # a shorter one
    questions = Questions(model, tokens[:, :CONTEXT], asked, answers)
    file = flat_file(tmp_path)
    known = KnownScores(0.5, questions.scores(KeyDiffPress(), 0))
    presses = [(None, None), (known, KeyDiffPress(0.5))]
    if length == 2:  # kvpress finds fake keys in so few dimensions for few tokens only
        own = BudgetPress(known, file, 0.5, any_model=True)
        presses.append((own, BudgetPress(KeyDiffPress(), file, 0.5, any_model=True)))
    for press, plain in presses:
        for text, outcome in enumerate(questions.outcomes(press)):
            kl, right = [], []
            for one, answer in zip(asked[text], answers[text], strict=True):
                full, own = (
                    _log_probabilities(model, tokens[text, :CONTEXT], one[one >= 0], how)
                    for how in (None, plain)
                )
                places = np.flatnonzero(answer) - 1
                kl += [float((full[at].exp() * (full[at] - own[at])).sum()) for at in places]
                right.append(all(int(own[at].argmax()) == one[at + 1] for at in places))
            assert outcome.kl == pytest.approx(np.mean(kl), abs=1e-5)
            assert outcome.right == np.mean(right)


def _log_probabilities(model, context, following, press):
    """(following, vocabulary), with the tokens read one by one."""
    cache, found = DynamicCache(), []
    with torch.no_grad(), press(model) if press is not None else nullcontext():
        model(torch.from_numpy(context)[None], past_key_values=cache)
    for place, token in enumerate(following):
        with torch.no_grad():
            ids, position = torch.tensor([[token]]), torch.tensor([[len(context) + place]])
            logits = model(ids, past_key_values=cache, position_ids=position).logits[0, 0]
        found.append(logits.double().log_softmax(-1))
    return torch.stack(found)


def test_a_model_gets_the_width_of_its_heads(tmp_path):
    """CriticalAdaKVPress reads it from the config, where Qwen2 has none."""
    model = ARCHITECTURES["qwen2"].model("sdpa")
    assert getattr(model.config, "head_dim", None) is None
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, "cpu")
    attention = loaded.model.layers[0].self_attn
    assert loaded.config.head_dim == attention.head_dim
    rng = np.random.default_rng(0)
    contexts = Contexts(loaded, rng.integers(8, VOCABULARY, (2, CONTEXT + 3)), CONTEXT)
    scores = contexts.scores(KeyDiffPress(), 0)
    press = OneByOne(scores, lambda own: CriticalAdaKVPress(KnownScores(0.5, own)))
    assert all(one.kl > 0 for one in contexts.outcomes(press))


def greedy(model, context, question, press, most):
    """The tokens of an answer, one forward per token, with the press as its users have it."""
    cache, found = DynamicCache(), []
    with torch.no_grad():
        with press(model) if press else nullcontext():
            model(torch.from_numpy(context[None]), past_key_values=cache)
        given = list(question)
        for place in range(len(question) + most - 1):
            position = torch.tensor([[len(context) + place]])
            token = torch.tensor([[given[place]]])
            logits = model(token, past_key_values=cache, position_ids=position).logits
            if place >= len(question) - 1:
                given.append(int(logits[0, -1].argmax()))
                found.append(given[-1])
    return found


@pytest.mark.parametrize("pruned", [0.0, 0.5])
def test_answers_are_those_of_greedy_decoding_with_the_press(model, tokens, tmp_path, pruned):
    tokenizer, most = tiny_tokenizer(), 6
    tokenizer.save_pretrained(tmp_path)
    model.config.name_or_path = model.name_or_path = str(tmp_path)
    context, questions = tokens[:, :CONTEXT], [tokens[0, -5:], tokens[1, -3:]]
    padded = np.array([[-1] * (5 - len(one)) + list(one) for one in questions])
    press = KeyDiffPress(pruned) if pruned else None
    plain = [
        greedy(model, own, asked, press, most)
        for own, asked in zip(context, questions, strict=True)
    ]
    ends = model.generation_config.eos_token_id
    assert all(ends not in one for one in plain)  # or the answers would be shorter
    words = [tokenizer.decode(one, skip_special_tokens=True) for one in plain]
    references = [[words[0], "not in it"], [words[1][-2:]]]
    found = Answers(model, context, padded, references, most)
    known = KnownScores(pruned, found.scores(KeyDiffPress(), 0)) if pruned else None
    assert [one.right for one in found.outcomes(known)] == [0.5, 1.0]
    other = Answers(model, context, padded, [[f"{one}?"] for one in words], most)
    assert [one.right for one in other.outcomes(known)] == [0.0, 0.0]
