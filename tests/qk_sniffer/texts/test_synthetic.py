"""Texts that are made, captures of them, and tokens as a person reads them."""

import json

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from qk_sniffer.cli import main
from qk_sniffer.config import make_config
from qk_sniffer.texts.encoding import TextEncoder
from qk_sniffer.texts.synthetic import open_source
from qk_sniffer.texts.token_texts import token_texts
from qk_toolkit.errors import ConfigError
from sniffing import same_bytes, sniff, sniff_first, words
from tiny_models import VOCABULARY
from tiny_texts import CHARACTERS, SPECIAL, tiny_tokenizer

LENGTHS = [60, 20, 33]
REPEATED = "synthetic:repeated"
SHUFFLED = "synthetic:shuffled"
EVERYTHING = {"capture__sampler__type": "all"}
SMALL = {"dataset__synthetic__length": 40, "dataset__synthetic__number": 5}


def tokens_of(path, vocabulary=VOCABULARY, **synthetic):
    """The tokens of all texts of a config."""
    config = make_config(
        dataset={"path": path, "synthetic": synthetic},
        model={"name": "m"},
        output={"data_root": "o"},
    )
    encoder = TextEncoder(config, tiny_tokenizer(), 512, vocabulary)
    return [list(encoder.tokens(text)) for text in open_source(config.dataset)]


def test_repeated_texts_have_one_period_of_distinct_tokens_twice():
    made = tokens_of(REPEATED, length=2 * len(CHARACTERS), number=4)
    assert len(made) == 4
    for ids in made:
        first, second = ids[: len(CHARACTERS)], ids[len(CHARACTERS) :]
        assert first == second
        assert sorted(first) == [*range(len(SPECIAL), len(SPECIAL) + len(CHARACTERS))]
    assert len({tuple(ids) for ids in made}) == 4
    assert tokens_of(REPEATED, length=20, number=4) == tokens_of(REPEATED, length=20, number=4)
    assert tokens_of(REPEATED, length=20, seed=1) != tokens_of(REPEATED, length=20)
    assert max(max(ids) for ids in tokens_of(REPEATED, vocabulary=30, length=20)) < 30


def test_shuffled_texts_have_the_tokens_of_the_texts_in_another_order(texts):
    tokenizer = tiny_tokenizer()
    plain = [tokenizer(path.read_text())["input_ids"] for path in sorted(texts.iterdir())]
    made = tokens_of(SHUFFLED, texts=str(texts))
    assert [len(ids) for ids in made] == [61, 21, 34]
    for ids, before in zip(made, plain, strict=True):
        assert ids[0] == before[0] == tokenizer.bos_token_id
        assert sorted(ids) == sorted(before)
        assert ids != before
    assert made == tokens_of(SHUFFLED, texts=str(texts))
    assert made != tokens_of(SHUFFLED, texts=str(texts), seed=1)


def test_a_capture_of_repeated_texts(model, tmp_path, capsys):
    assert sniff(model, REPEATED, tmp_path / "whole", **SMALL, **EVERYTHING) == 0
    assert "special tokens added: none" in capsys.readouterr().err
    rows = pq.read_table(tmp_path / "whole" / "l00h00q" / "data.parquet").to_pandas()
    assert len(rows) == 5 * 40
    for _, text in rows.groupby("example_id"):
        assert text["token_id"].tolist()[:20] == text["token_id"].tolist()[20:]
        assert text["token_id"].nunique() == 20
    manifest = json.loads((tmp_path / "whole" / "dump.json").read_text())
    record = {"type": "repeated", "length": 40, "period": 20, "number": 5, "seed": 0}
    assert manifest["synthetic"] == manifest["capture"]["dataset"]["synthetic"] == record
    assert "made texts: `type repeated, length 40" in (tmp_path / "whole/README.md").read_text()
    given = words(model, REPEATED, tmp_path / "planned", **SMALL, **EVERYTHING)
    assert main([*given, "--dry_run"]) == 0
    planned = capsys.readouterr().out
    assert "Lengths are those of the first 5 texts" in planned
    assert "40.0" in planned
    assert main([*given, "--dataset.max_samples", "2"]) == 0
    assert json.loads((tmp_path / "planned" / "dump.json").read_text())["num_examples"] == 2


def test_a_resumed_capture_has_the_same_tokens(model, texts, tmp_path, monkeypatch):
    kind, given = SHUFFLED, {"dataset__synthetic__texts": texts, **EVERYTHING}
    assert sniff(model, kind, tmp_path / "whole", **given) == 0
    sniff_first(monkeypatch, 2, model, kind, tmp_path / "resumed", **given)
    assert sniff(model, kind, tmp_path / "resumed", **given) == 0
    assert same_bytes(tmp_path / "whole", tmp_path / "resumed")
    assert sniff(model, kind, tmp_path / "whole", **given, dataset__synthetic__seed=1) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "synthetic:other"}, "path: expected synthetic:repeated or synthetic:shuffled"),
        ({"path": "d", "synthetic": {"seed": 1}}, "synthetic: has an effect only if dataset.path"),
        ({"path": SHUFFLED}, "synthetic.texts: is required for synthetic:shuffled"),
        ({"path": SHUFFLED, "synthetic": {"texts": "d", "length": 4}}, "synthetic.length: has no"),
        ({"path": REPEATED, "synthetic": {"texts": "d"}}, "synthetic.texts: has no effect"),
        ({"path": REPEATED, "synthetic": {"length": 7}}, "synthetic.length: 7 given, expected an"),
        ({"path": REPEATED, "streaming": True}, "streaming: has no effect on synthetic:repeated"),
        ({"path": REPEATED, "name": "x"}, "name: has no effect on synthetic:repeated"),
    ],
)
def test_settings_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ConfigError) as caught:
        make_config(dataset=fields, model={"name": "m"}, output={"data_root": "o"})
    assert str(caught.value).startswith(f"dataset.{message}")


def test_texts_that_cannot_be_made_are_refused(tmp_path):
    most = 2 * len(CHARACTERS)
    for path, fields, message in (
        (REPEATED, {"length": 1_000}, "length: 1,000 tokens are more than 512, the context"),
        (
            REPEATED,
            {"length": 200},
            f"vocabulary has {most // 2} without special tokens; .* {most}",
        ),
        (SHUFFLED, {"texts": str(tmp_path / "no.txt")}, r"synthetic\.texts: .*does not exist"),
    ):
        with pytest.raises(ConfigError, match=message):
            tokens_of(path, **fields)


def byte_level(*pieces):
    """A tokenizer like that of GPT-2 with these pieces besides the letter a."""
    vocabulary = {piece: number for number, piece in enumerate(("a", *pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_byte_level_tokens_are_plain_text():
    """A piece of a character is shown by its bytes."""
    tokenizer = byte_level("Ġthe", "Ċ", "Ã©", "âĢ", "ĠâĢ")
    assert token_texts(tokenizer, range(6)) == {
        0: "a",
        1: " the",
        2: "\n",
        3: "é",
        4: r"\xe2\x80",
        5: r" \xe2\x80",
    }


def test_tokens_with_a_space_keep_it():
    """Tokenizers like that of Llama 2 remove a space at the beginning of a text."""
    vocabulary = {token: number for number, token in enumerate(("▁a", "▁the", "the", "<0xE2>"))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert fast.decode([1]) == "the"
    assert token_texts(fast, [1, 2, 3]) == {1: " the", 2: "the", 3: "<0xE2>"}
