"""The attention of the sampled queries of one attention call."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import torch
from torch import Tensor

from qk_sniffer.attention.chunked import chunked_attention
from qk_sniffer.attention.rule import AttentionRule, SampledQueries, TextTokens
from qk_sniffer.sampling.heads import KindRows

_TEST_ROWS = 64  # as many as the largest tile of the kernel


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
        reason = " ".join(str(error).split())[:200]
        warnings.warn(
            f"the Triton kernel of attention columns cannot be used for vectors of {width} "
            f"dimensions ({type(error).__name__}: {reason}); plain torch is used, which is slower",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
