"""One length for all texts, the length of repeated tokens, and texts that were replaced."""

import json
from contextlib import chdir

import pytest

from qk_sniffer.capture.description import capture_plan
from qk_sniffer.capture.ranks import Ranks
from qk_sniffer.capture.setup import prepare
from qk_study.plan import make_plans
from qk_study.reading import read_study
from qk_study.steps import state_of, to_begin
from qk_study.texts import chosen, one_length, record_texts, texts_changed
from qk_toolkit.errors import ConfigError
from tiny_texts import save_texts, save_tiny_model, tiny_tokenizer


@pytest.mark.parametrize(
    ("lengths", "tokens", "texts"),
    [
        ([100, 100, 100], 100, 3),
        ([100, 90, 80, 70], 70, 4),  # four texts are needed for errors
        ([1000, 900, 900, 900, 10, 0], 900, 4),
        ([5000, *[100] * 9], 100, 10),  # one long text does not decide
        ([*[1000] * 4, *[100] * 6], 100, 10),  # half of the texts reach it
    ],
)
def test_the_length_keeps_most_tokens(lengths, tokens, texts):
    found = one_length(lengths)
    assert (found.tokens, found.texts) == (tokens, texts)
    reach = sum(length >= tokens for length in lengths)
    assert reach == texts
    known = [length for length in lengths if length]
    for other in known:  # no length that enough texts reach keeps more
        number = sum(length >= other for length in known)
        if number >= max(min(4, len(known)), len(known) / 2):
            assert number * other <= tokens * texts


@pytest.fixture
def parts(tmp_path):
    """The captures of texts and of repeated tokens of a model with a small vocabulary."""
    save_tiny_model(tmp_path / "model")
    save_texts(tmp_path / "texts", [40, 40, 40, 40, 30])
    return captures_of(tmp_path)


def captures_of(folder, **flags):
    with chdir(folder):
        settings = read_study(["model"], {"texts.path": "texts", "output_dir": "out", **flags})
        [plan] = make_plans(settings)
    return list(plan.captures)


def test_choices_are_made_once_and_kept(parts, tmp_path):
    texts = parts[0]
    with chdir(tmp_path):
        found, told = begun(texts)
        config = found.config
        assert told is not None
        assert f"texts are cut to {config.tokenizer.max_length} tokens" in told
        plan = tmp_path / texts.folder / ".capture" / "plan.json"
        plan.parent.mkdir(parents=True)
        plan.write_text(json.dumps(capture_plan(prepare(config, Ranks()))))
        record_texts(texts)
        state = state_of(texts)
        assert (state.choice, state.setting, state.inputs) == (
            config.tokenizer.max_length,
            None,
            "",
        )
        assert begun(texts) == (found, None)
        save_texts(tmp_path / "texts", [20] * 5)
        again, _ = begun(texts, again=True)
        assert again.capture.tokenizer.max_length == 21  # with a begin token
        assert again.capture.overwrite
        with pytest.raises(ConfigError, match="out/dumps/model: the texts have changed"):
            begun(texts)


def begun(part, *, again=False):
    return to_begin(part, state_of(part), again=again)


def test_repeated_tokens_fit_a_small_vocabulary(parts, tmp_path):
    with chdir(tmp_path):
        made = chosen(parts[1])[0].capture.dataset.made
        length = made.tokens
        tokenizer = tiny_tokenizer()
        special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        assert length == 2 * len(set(tokenizer.get_vocab().values()) - special) < 512
        chosen(captures_of(tmp_path, repeated_length=str(length))[1])
        long = captures_of(tmp_path, repeated_length=str(length + 2))[1]
        with pytest.raises(ConfigError, match=f"^repeated_length: .* give at most {length}"):
            chosen(long)


def test_replaced_texts_are_noticed(parts, tmp_path):
    with chdir(tmp_path):
        texts = parts[0]
        assert not texts_changed(texts)  # nothing is recorded
        record_texts(texts)
        assert not texts_changed(texts)
        file = tmp_path / "texts" / "000.txt"
        file.touch()
        assert not texts_changed(texts)
        file.rename(file.with_name("zzz.txt"))
        assert texts_changed(texts)
        file.with_name("zzz.txt").rename(file)
        assert not texts_changed(texts)
        file.write_text(file.read_text() + "more")
        assert texts_changed(texts)
        for path in (tmp_path / "texts").iterdir():
            path.unlink()
        (tmp_path / "texts").rmdir()
        assert not texts_changed(texts)  # they are not there any more
