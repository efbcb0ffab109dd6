"""Make batches: the tokens of several texts, and the rows to take from the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qk_dump.side_files import Example
from qk_sniffer.capture.setup import Setup
from qk_sniffer.rows.plan import ForwardTexts, texts_of_forward
from qk_sniffer.texts.sources import Text


@dataclass(frozen=True)
class Batch:
    """Several texts, and the rows to take. Texts without tokens are not run."""

    number: int
    examples: tuple[Example, ...]  # of all texts
    token_ids: tuple[Sequence[int], ...]  # of the texts to run
    texts: ForwardTexts  # the texts to run

    @property
    def num_tokens(self) -> int:
        """The tokens of the texts to run."""
        return sum(len(ids) for ids in self.token_ids)


def make_batch(setup: Setup, number: int, group: Sequence[Text]) -> Batch:
    """Tokenize texts and sample the rows to take."""
    token_ids = [setup.encoder.tokens(text) for text in group]
    examples = tuple(
        Example(text.example_id, text.original_id, len(ids), text.digest)
        for text, ids in zip(group, token_ids, strict=True)
    )
    run = [(text.example_id, ids) for text, ids in zip(group, token_ids, strict=True) if len(ids)]
    kept = tuple(ids for _, ids in run)
    texts = texts_of_forward(setup.row_plan, [example for example, _ in run], kept)
    return Batch(number, examples, kept, texts)
