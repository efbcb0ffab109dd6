"""The attention of the sampled queries of one attention call.

The attention of sampled queries in plain torch, for any device. The logits of a part of the queries
with all their keys are in memory at a time. The rows of a text are computed without the other texts
of the batch, so that they do not depend on them.
"""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import torch
from torch import Tensor

from qk_dump.attention_columns import MASS_BINS, SINK_TOKENS, first_distances
from qk_sniffer.attention.rule import AttentionRule, SampledQueries, TextTokens, matching_keys
from qk_sniffer.attention.totals import COLUMNS, ByToken, Totals
from qk_sniffer.sampling.heads import KindRows
from qk_toolkit.raised_in import is_our_bug

_TEST_ROWS = 64  # as many as the largest tile of the kernel
_MOST_LOGITS = 1 << 20  # in memory at a time, for one key head
_LOWEST = -87.0  # hidden keys get exp(-87), about 1e-38; exp of lower numbers is slow on a CPU


def query_attention(queries: SampledQueries, key: Tensor, rule: AttentionRule) -> Tensor:
    """Attention columns (heads, n, COLUMNS) of sampled queries, float32.

    `key` is (b, key heads, s, d). CUDA uses a Triton kernel, other devices plain torch.
    """
    vectors, rows, heads, group, _ = queries
    device, width = vectors.device, vectors.shape[2]
    use_kernel = len(rows) > 0 and device.type == "cuda" and rule.extra is None
    if use_kernel and kernel_works(device, vectors.dtype, width, min(group, len(heads))):
        from qk_sniffer.attention.kernel import kernel_attention

        return kernel_attention(queries, key, rule)
    return chunked_attention(queries, key, rule)


@cache
def kernel_works(device: torch.device, dtype: torch.dtype, width: int, group: int) -> bool:
    """Whether the Triton kernel can be compiled and run for vectors and groups of this size.

    Triton may be missing, may find no C compiler, or the vectors may be too wide for the memory of
    the GPU's processors.
    """
    try:
        from qk_sniffer.attention.kernel import kernel_attention

        rows = KindRows(np.zeros(_TEST_ROWS, np.int64), np.arange(_TEST_ROWS))
        vectors = torch.zeros((group, _TEST_ROWS, width), dtype=dtype, device=device)
        tokens = TextTokens(torch.zeros((1, _TEST_ROWS), dtype=torch.int32, device=device))
        queries = SampledQueries(vectors, rows, tuple(range(group)), group, tokens)
        key = torch.zeros((1, 1, _TEST_ROWS, width), dtype=dtype, device=device)
        rule = AttentionRule(1.0, None, None, chunked=False)
        found = kernel_attention(queries, key, rule)
        largest = found[..., 1]  # (group, rows) logits, all 0
        return bool((largest == 0).all())
    except Exception as error:  # of many types, from Triton, its compiler and the driver
        if is_our_bug(error):
            raise
        reason = " ".join(str(error).split())[:200]
        warnings.warn(
            f"the Triton kernel of attention columns cannot be used for vectors of {width} "
            f"dimensions ({type(error).__name__}: {reason}); plain torch is used, which is slower",
            RuntimeWarning,
            stacklevel=2,
        )
        return False


def chunked_attention(queries: SampledQueries, key: Tensor, rule: AttentionRule) -> Tensor:
    """Attention columns (heads, n, COLUMNS) of queries to the keys `key` (b, key heads, s, d)."""
    vectors, rows, heads, group, tokens = queries
    result = vectors.new_empty((*vectors.shape[:2], COLUMNS), dtype=torch.float32)
    for begin, end in rows.texts():
        sequence, last = int(rows.sequence[begin]), int(rows.position[end - 1])
        position = torch.as_tensor(rows.position[begin:end], device=vectors.device)  # (r,)
        for key_head in sorted({head // group for head in heads}):
            places = [place for place, head in enumerate(heads) if head // group == key_head]
            numbers = [heads[place] for place in places]
            keys = key[sequence, key_head % key.shape[1], : last + 1].detach().float()  # (s, d)
            step = max(1, _MOST_LOGITS // ((last + 1) * len(places)))
            for start in range(0, end - begin, step):
                part = slice(begin + start, min(begin + start + step, end))
                found = _of_key_head(
                    vectors[places, part],
                    keys,
                    position[start : start + step],
                    rule,
                    numbers,
                    sequence,
                    None if tokens is None else tokens.ids[sequence],
                )
                result[places, part] = found
    return result


def _of_key_head(
    queries: Tensor,
    keys: Tensor,
    position: Tensor,
    rule: AttentionRule,
    numbers: list[int],
    sequence: int,
    tokens: Tensor | None,
) -> Tensor:
    """Columns (g, r, COLUMNS) of `queries` (g, r, d) that share the `keys` (s, d) of a text.

    `tokens` (s,) are those of the text, if they are known.
    """
    low = rule.first_visible(position)  # (r,)
    begin, end = int(low.min()), int(position.max()) + 1
    logits = (queries.float() * rule.scale) @ keys[begin:end].T  # (g, r, keys)
    if rule.softcap is not None:
        logits.div_(rule.softcap).tanh_().mul_(rule.softcap)
    place = torch.arange(begin, end, device=keys.device)  # (keys,)
    seen = (place <= position[:, None]) & (place >= low[:, None])  # (r, keys)
    if rule.extra is not None:
        extra = rule.extra[sequence % len(rule.extra)]  # (heads or 1, s, s)
        chosen = extra[numbers] if len(extra) > 1 else extra  # (g or 1, s, s)
        added = chosen[:, position, begin:end].float()  # (g or 1, r, keys)
        seen = seen & (added != -torch.inf)
        logits += torch.where(seen, added, 0.0)
    sinks = None if rule.sinks is None else rule.sinks[numbers][:, None]  # (g, 1)
    matching = None if tokens is None else matching_keys(tokens, position, begin, end)
    return _totals(logits, seen, position - begin, begin, matching).columns(sinks)


def _totals(
    logits: Tensor,
    seen: Tensor,
    last: Tensor,
    begin: int,
    matching: tuple[Tensor, Tensor] | None,
) -> Totals:
    """Sums over the keys of `logits` (g, r, keys); the first key is at position `begin`.

    `seen` (r, keys) or (g, r, keys) are the keys that a query sees, `last` (r,) is the place of the
    query among the keys. `matching` (r, keys) are its duplicate keys and its induction keys.
    """
    logits = torch.where(seen, logits, -torch.inf)
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
