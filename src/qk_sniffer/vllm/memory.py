"""How much memory a capture with vLLM needs, before it starts."""

from __future__ import annotations

from qk_sniffer.config import CaptureConfig
from qk_sniffer.engines.engine import ModelLayout
from qk_sniffer.rows.plan import RowPlan
from qk_sniffer.vllm.text_calls import held_bytes


def memory_needs(
    config: CaptureConfig,
    layout: ModelLayout,
    plan: RowPlan,
    *,
    weights: int,
    longest: int,
    element: int,
) -> dict[str, int]:
    """Bytes of all ranks together, by what they are for.

    `weights` is the number of weights, `longest` the tokens of the longest text, and `element` the
    bytes of a number. Texts of a batch are in vLLM at the same time.
    """
    texts, step = config.inference.batch_size, config.vllm.tokens_per_step
    needs = {
        "weights": weights * element,
        "cache": texts * longest * sum(_cached(layout)) * element,
    }
    if plan.wanted and step is not None and step < longest * texts:
        needs["held queries and keys"] = texts * held_bytes(plan, longest, element)
    return needs


def _cached(layout: ModelLayout) -> list[int]:
    """Numbers that the cache has of a token, by layer; windows may need less."""
    return [2 * facts.k_heads * facts.width for facts in layout.layers]
