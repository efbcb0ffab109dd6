"""The attention of the sampled queries of one attention call.

CUDA uses a Triton kernel, other devices plain torch. In plain torch, the logits of a part of the
queries with all their keys are in memory at a time. The rows of a text are computed without the
other texts, so that they do not depend on them.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qk_dump.columns import MASS_BINS, SINK_TOKENS, first_distances
from qk_sniffer.attention import trial
from qk_sniffer.attention.logits import visible_logits
from qk_sniffer.attention.queries import SampledQueries, TextTokens, matching_keys
from qk_sniffer.attention.totals import COLUMNS, ByToken, Totals
from qk_sniffer.engines.engine import AttentionRule
from qk_sniffer.sampling.rows import KindRows

MOST_LOGITS = {"cuda": 1 << 24, "other": 1 << 20}
"""Logits that are in memory at a time, for one key head. A GPU needs larger blocks to be busy."""
_LOWEST = -87.0  # hidden keys get exp(-87), about 1e-38; exp of lower numbers is slow on a CPU


def query_attention(queries: SampledQueries, key: Tensor, rule: AttentionRule) -> Tensor:
    """Attention columns (heads, n, COLUMNS) of sampled queries, float32.

    `key` (tokens, key heads, d) are the keys of all texts.
    """
    vectors, rows, _, heads, group, _ = queries
    device, width = vectors.device, vectors.shape[2]
    use_kernel = len(rows) > 0 and device.type == "cuda" and rule.extra is None
    if use_kernel and kernel_works(device, vectors.dtype, width, min(group, len(heads))):
        from qk_sniffer.attention.kernel import kernel_attention

        return kernel_attention(queries, key, rule)
    return chunked_attention(queries, key, rule)


@cache
def kernel_works(device: torch.device, dtype: torch.dtype, width: int, group: int) -> bool:
    """Whether the Triton kernel can be compiled and run for vectors and groups of this size."""
    return trial.runs(partial(_equal_logits_are_found, device, dtype, width, group), width)


def _equal_logits_are_found(
    device: torch.device, dtype: torch.dtype, width: int, group: int
) -> bool:
    """Run the kernel with queries and keys of zeros: all logits are 0."""
    from qk_sniffer.attention.kernel import kernel_attention

    n = trial.ROWS
    vectors = torch.zeros((group, n, width), dtype=dtype, device=device)
    queries = SampledQueries(
        vectors=vectors,
        rows=KindRows(np.zeros(n, np.int64), np.arange(n)),
        starts=np.zeros(1, np.int64),
        heads=tuple(range(group)),
        group=group,
        tokens=TextTokens(torch.zeros(n, dtype=torch.int32, device=device)),
    )
    key = vectors[0, :, None]  # (n, 1, d)
    found = kernel_attention(queries, key, AttentionRule(1.0, None, None, chunked=False))
    return bool((found[..., 1] == 0).all())  # the largest logits


class _SharedKeys(NamedTuple):
    """The keys of a text that some query heads share."""

    keys: Tensor  # (s, d) float32
    tokens: Tensor | None  # (s,) those of the text, if they are known
    text: int  # its number in the forward
    heads: Tensor  # (g,) numbers of the query heads


def chunked_attention(
    queries: SampledQueries, key: Tensor, rule: AttentionRule, most_logits: int | None = None
) -> Tensor:
    """Attention columns (heads, n, COLUMNS) of queries to the keys `key` (tokens, key heads, d).

    `most_logits` are in memory at a time; None: the number for the device.
    """
    vectors, rows, starts, heads, group, tokens = queries
    if most_logits is None:
        most_logits = MOST_LOGITS["cuda" if vectors.is_cuda else "other"]
    result = vectors.new_empty((*vectors.shape[:2], COLUMNS), dtype=torch.float32)
    for begin, end in rows.texts():
        text, last = int(rows.sequence[begin]), int(rows.position[end - 1])
        inside = slice(int(starts[text]), int(starts[text]) + last + 1)  # tokens that are seen
        position = torch.as_tensor(rows.position[begin:end], device=vectors.device)  # (r,)
        for key_head in sorted({head // group for head in heads}):
            places = [place for place, head in enumerate(heads) if head // group == key_head]
            shared = _SharedKeys(
                keys=key[inside, key_head].float(),
                tokens=None if tokens is None else tokens.ids[inside],
                text=text,
                heads=torch.tensor([heads[place] for place in places], device=vectors.device),
            )
            step = max(1, most_logits // ((last + 1) * len(places)))
            for start in range(0, end - begin, step):
                part = slice(begin + start, min(begin + start + step, end))
                found = _of_key_head(
                    vectors[places, part], position[start : start + step], shared, rule
                )
                result[places, part] = found
    return result


def _of_key_head(
    queries: Tensor, position: Tensor, shared: _SharedKeys, rule: AttentionRule
) -> Tensor:
    """Columns (g, r, COLUMNS) of `queries` (g, r, d) that share their keys."""
    begin, end = int(rule.first_visible(position).min()), int(position.max()) + 1
    products = (queries.float() * rule.scale) @ shared.keys[begin:end].T  # (g, r, keys)
    logits, seen = visible_logits(products, position, begin, rule, shared.text, shared.heads)
    sinks = None
    if rule.sinks is not None:
        sinks = rule.sinks.to(position.device)[shared.heads][:, None]  # (g, 1)
    matching = None
    if shared.tokens is not None:
        matching = matching_keys(shared.tokens, position, begin, end)
    return _totals(logits, seen, position - begin, begin, matching).columns(sinks)


def _totals(
    logits: Tensor,
    seen: Tensor,
    last: Tensor,
    begin: int,
    matching: tuple[Tensor, Tensor] | None,
) -> Totals:
    """Sums over the keys of `logits` (g, r, keys); the first key is at position `begin`.

    Logits of hidden keys are −inf; they are overwritten. `seen` (r, keys) or (g, r, keys) are the
    keys that a query sees, `last` (r,) is the place of the query among the keys. `matching`
    (r, keys) are its duplicate keys and its induction keys.
    """
    largest, place = logits.max(dim=-1)  # (g, r); the first one of several equal logits
    below = logits.sub_(largest[..., None]).clamp_(min=_LOWEST)
    powers = below.exp()  # (g, r, keys)
    shares = _sums_by_distance(powers, last)  # (g, r, bins)
    return Totals(
        largest=largest,
        total=shares.sum(dim=-1),
        slope=torch.linalg.vecdot(powers, below),
        sink_share=powers[..., : max(0, SINK_TOKENS - begin)].sum(dim=-1),
        shares=shares,
        first_share=powers[..., : max(0, 1 - begin)].sum(dim=-1),
        place=place + begin,
        by_token=None if matching is None else _by_token(powers, seen, *matching),
    )


def _by_token(powers: Tensor, seen: Tensor, duplicate: Tensor, induction: Tensor) -> ByToken:
    """Sums of `powers` (g, r, keys) over two kinds of keys (r, keys), as far as they are seen."""
    keys = [duplicate & seen, induction & seen]  # (r, keys) or (g, r, keys)
    numbers = [found.sum(dim=-1).expand(powers.shape[:2]) for found in keys]  # (g, r)
    shares = [torch.linalg.vecdot(powers, found.to(powers)) for found in keys]  # (g, r)
    return ByToken(*shares, *numbers)


def _sums_by_distance(powers: Tensor, last: Tensor) -> Tensor:
    """(g, r, bins): sums of `powers` (g, r, keys) by the distance from the query to the key."""
    first_keys = last[:, None] - torch.tensor(first_distances(), device=last.device)  # (r, bins)
    if not powers.is_cuda:
        return _sums_on_cpu(powers, first_keys)
    sums = powers.cumsum(dim=-1, dtype=torch.float64)  # (g, r, keys)
    index = first_keys.clamp(min=0).expand(len(sums), -1, -1)
    up_to = sums.gather(2, index) * (first_keys >= 0)  # (g, r, bins)
    return (up_to - torch.nn.functional.pad(up_to[..., 1:], (0, 1))).to(powers)


def _sums_on_cpu(powers: Tensor, first_keys: Tensor) -> Tensor:
    """The same with numpy; the nearest key of every bin is in `first_keys`.

    The bins of a row follow each other in memory, the farthest first, and the rows too. So one call
    sums the bins of all rows.
    """
    values = powers.cpu().numpy()
    nearest = first_keys.cpu().numpy()  # (r, bins), descending
    next_nearest = np.pad(nearest[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    starts = np.maximum(next_nearest + 1, 0)  # (r, bins), of every bin in its row
    starts += values.shape[2] * np.arange(len(starts))[:, None]
    used = nearest[:, ::-1] >= 0  # (r, bins), the farthest first
    in_a_line = values.reshape(len(values), -1)  # (g, r · keys)
    shares = np.zeros((*values.shape[:2], MASS_BINS), np.float32)
    shares[:, used] = np.add.reduceat(in_a_line, starts[:, ::-1][used], axis=1)
    return torch.from_numpy(shares[..., ::-1].copy()).to(powers.device)
