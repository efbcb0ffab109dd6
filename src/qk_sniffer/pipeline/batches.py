"""Make batches: the tokens of several texts, and the rows to take from the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qk_dump.examples import Example
from qk_dump.layout import Kind
from qk_sniffer.pipeline.attended_rows import AttendedTexts
from qk_sniffer.pipeline.setup import Setup
from qk_sniffer.pipeline.texts import Text
from qk_sniffer.sampling.heads import KindRows, sample_rows


@dataclass(frozen=True)
class Batch:
    """The tokens of several texts, and the rows to take. Texts without tokens are not run."""

    number: int
    examples: tuple[Example, ...]  # of all texts
    token_ids: tuple[Sequence[int], ...]  # of the texts to run
    run_ids: npt.NDArray[np.int64]  # (texts to run,) example ids
    tokens: Tensor  # (texts to run, longest), padded on the right
    rows: dict[tuple[int, Kind], KindRows]
    attended: AttendedTexts | None = None  # None if no keys are drawn by attention


def make_batch(setup: Setup, number: int, group: Sequence[Text]) -> Batch:
    """Tokenize texts and sample the rows to take."""
    token_ids = [setup.encoder.tokens(text) for text in group]
    examples = tuple(
        Example(text.example_id, text.original_id, len(ids), text.digest)
        for text, ids in zip(group, token_ids, strict=True)
    )
    run = [place for place, ids in enumerate(token_ids) if len(ids)]
    kept = tuple(token_ids[place] for place in run)
    longest = max((len(ids) for ids in kept), default=0)
    tokens = torch.full((len(kept), longest), setup.padding, dtype=torch.int64)
    for line, ids in zip(tokens, kept, strict=True):
        line[: len(ids)] = torch.as_tensor(ids)
    run_ids = np.array([examples[place].example_id for place in run], np.int64)
    lengths = [len(ids) for ids in kept]
    rows = sample_rows(setup.sampler, setup.wanted, list(run_ids), lengths)
    attended = None
    if setup.attended is not None:
        numbers = [int(example) for example in run_ids]
        attended = AttendedTexts(setup.attended, numbers, lengths, setup.attended_layers)
    return Batch(number, examples, kept, run_ids, tokens, rows, attended)
