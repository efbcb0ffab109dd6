"""Texts of tokens, as a person reads them."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from qk_sniffer.texts.token_texts import token_texts


def byte_level(*pieces: str) -> PreTrainedTokenizerFast:
    """A tokenizer like that of GPT-2 with these pieces besides the letter a."""
    vocabulary = {piece: number for number, piece in enumerate(("a", *pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_byte_level_tokens_are_plain_text() -> None:
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


def test_tokens_with_a_space_keep_it() -> None:
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
