"""The sampled queries of one attention call."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from qk_sniffer.attention.text_tokens import TextTokens
from qk_sniffer.sampling.rows import KindRows


class SampledQueries(NamedTuple):
    """Vectors of sampled queries, their places in the batch, and their heads."""

    vectors: Tensor  # (heads, n, d)
    rows: KindRows  # n places
    heads: tuple[int, ...]  # numbers of the query heads
    group: int  # query heads that share a key head
    tokens: TextTokens | None = None  # of the batch; None if they are not known
