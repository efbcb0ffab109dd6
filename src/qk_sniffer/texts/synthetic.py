"""Texts that are made: `synthetic:repeated` and `synthetic:shuffled`. For roles and baselines.

A repeated text has no words: its tokens are drawn from the vocabulary. A shuffled text is a text of
the user with its tokens in random order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qk_sniffer.text_settings import DatasetSettings, SyntheticSettings
from qk_sniffer.texts.sources import Text, Texts, open_texts
from qk_toolkit.arrays import Ints
from qk_toolkit.errors import ConfigError, SettingError

_REPEATED, _SHUFFLED = 2, 3  # in the seed; 0 and 1 are the sampled positions of queries and keys


@dataclass(frozen=True)
class RepeatedTexts:
    """The texts of `synthetic:repeated`. Their tokens are made when they are run."""

    made: SyntheticSettings
    total: int
    has_index: bool = True
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Text]:
        return map(self._text, range(self.total))

    def between(self, start: int, end: int) -> list[Text]:
        """The texts with these numbers."""
        return [self._text(number) for number in range(start, min(end, self.total))]

    def sizes(self) -> list[int]:
        """A size of every text, to run long texts first; all are equal."""
        return [self.made.tokens] * self.total

    def _text(self, number: int) -> Text:
        made = self.made
        return Text(number, number, f"synthetic:repeated {made.tokens} {made.seed} {number}")


TextSource = Texts | RepeatedTexts


def open_source(settings: DatasetSettings) -> TextSource:
    """The texts of the settings: those of a data set, or made ones."""
    made = settings.made
    if made is None:
        return open_texts(settings)
    if made.texts is None:
        return RepeatedTexts(made, min(made.count, settings.max_samples or made.count))
    try:
        return open_texts(settings.model_copy(update={"path": made.texts}))
    except SettingError as error:
        raise SettingError("dataset.synthetic.texts", error.problem) from error


def repeated_tokens(plain: Ints, made: SyntheticSettings, example: int) -> list[int]:
    """Distinct random tokens of `plain`, twice."""
    period = made.tokens // 2
    if period > len(plain):
        raise ConfigError(
            f"dataset.synthetic.length: {made.tokens:,} tokens need {period:,} different ones, but "
            f"the vocabulary has {len(plain):,} without special tokens; give at most "
            f"{2 * len(plain)}"
        )
    rng = np.random.default_rng([made.seed, example, 0, _REPEATED])
    once: list[int] = rng.choice(plain, period, replace=False).tolist()
    return once + once


def shuffled_tokens(ids: Sequence[int], special: Ints, seed: int, example: int) -> list[int]:
    """The tokens in random order; `special` tokens, such as BOS, keep their places."""
    tokens = np.array(ids, np.int64)  # (n,)
    places = np.flatnonzero(~np.isin(tokens, special))  # (m,)
    rng = np.random.default_rng([seed, example, 0, _SHUFFLED])
    tokens[places] = tokens[rng.permutation(places)]
    shuffled: list[int] = tokens.tolist()
    return shuffled
