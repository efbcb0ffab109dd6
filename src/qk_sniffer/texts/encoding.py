"""From a text to the token ids that the model runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qk_sniffer.config import CaptureConfig
from qk_sniffer.texts.sources import Text, tokenize
from qk_sniffer.texts.synthetic import repeated_tokens, shuffled_tokens
from qk_toolkit.arrays import Ints
from qk_toolkit.errors import ConfigError


@dataclass(frozen=True)
class Cut:
    """How much of the first texts is used."""

    texts: int
    tokens: int  # of whole texts
    used: int
    most: int  # of a text

    def describe(self) -> str:
        """A sentence for the user."""
        of = "the text" if self.texts == 1 else f"{self.texts:,} texts"
        return (
            f"{self.used:,} of the {self.tokens:,} tokens of {of} are used: a text is cut to "
            f"{self.most:,} tokens (tokenizer.max_length, or the context of the model)"
        )


@dataclass(frozen=True)
class TextEncoder:
    """Turns the texts of a capture into token ids."""

    config: CaptureConfig
    tokenizer: Any
    max_length: int | None
    vocabulary: int  # number of tokens that have an embedding

    def tokens(self, text: Text) -> Sequence[int]:
        """The token ids of a text, at most `max_length`; an empty text has none."""
        made = self.config.dataset.made
        if made is not None and made.texts is None:
            if self.max_length is not None and made.tokens > self.max_length:
                raise ConfigError(
                    f"dataset.synthetic.length: {made.tokens:,} tokens are more than "
                    f"{self.max_length:,}, the context of the model or tokenizer.max_length"
                )
            return repeated_tokens(self.plain_tokens, made, text.example_id)
        special = self.config.tokenizer.add_special_tokens
        ids = tokenize(self.tokenizer, text.text, self.max_length, special)
        require_known_tokens(ids, self.vocabulary)
        if made is None:
            return ids
        return shuffled_tokens(ids, self._special_tokens, made.seed, text.example_id)

    def cut(self, texts: Iterable[Text]) -> Cut | None:
        """How much of some texts is used; None if they are used whole."""
        made = self.config.dataset.made
        if self.max_length is None or (made is not None and made.texts is None):
            return None
        special = self.config.tokenizer.add_special_tokens
        lengths = [len(tokenize(self.tokenizer, one.text, None, special)) for one in texts]
        if max(lengths, default=0) <= self.max_length:
            return None
        used = sum(min(length, self.max_length) for length in lengths)
        return Cut(len(lengths), sum(lengths), used, self.max_length)

    @cached_property
    def _special_tokens(self) -> Ints:
        return np.array(sorted(self.tokenizer.all_special_ids), np.int64)

    @cached_property
    def plain_tokens(self) -> Ints:
        """All tokens of the vocabulary without special and added ones."""
        added = self.tokenizer.added_tokens_decoder.keys()
        excluded = {*self.tokenizer.all_special_ids, *added}
        known = set(self.tokenizer.get_vocab().values()) - excluded
        return np.array(sorted(token for token in known if token < self.vocabulary), np.int64)


def require_known_tokens(ids: Sequence[int], vocabulary: int) -> None:
    """Refuse tokens without an embedding."""
    if ids and max(ids) >= vocabulary:
        raise ConfigError(
            f"tokenizer.name: the tokenizer gives token {max(ids)}, but the model has embeddings "
            f"for {vocabulary} tokens; choose the model's own tokenizer"
        )
