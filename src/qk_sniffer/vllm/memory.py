"""How much memory a capture with vLLM needs, before it starts."""

from __future__ import annotations

from qk_sniffer.config import CaptureConfig
from qk_sniffer.engines.engine import ModelLayout
from qk_sniffer.rows.plan import RowPlan

_NORM_BYTES = 4  # of the length of a value, in float32


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
    cached = sum(2 * facts.k_heads * facts.width for facts in layout.layers)  # of a token, at most
    needs = {"weights": weights * element, "cache": texts * longest * cached * element}
    if plan.wanted and step is not None and step < longest * texts:
        needs["held queries and keys"] = texts * held_bytes(plan, longest, element)
    return needs


def held_bytes(plan: RowPlan, length: int, element: int) -> int:
    """Bytes of what all ranks hold of a text in pieces."""
    return length * sum(
        (layer.facts.q_heads + layer.facts.k_heads) * layer.facts.width * element
        + layer.facts.k_heads * _NORM_BYTES
        for layer in plan.wanted
    )
