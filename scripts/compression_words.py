"""Names of scores, orders and shares for readers."""

from __future__ import annotations

from compression_conditions import BEST_STATIC, PER_QUERY, RANDOM, REVERSE, SHARED, UNIFORM

_WORDS = {
    "key_norm": "length of the key",
    "q_filter": "Q-Filter",
    "gaussian": "one Gaussian after RoPE",
    "expected_attention": "Expected Attention",
    "triattention": "TriAttention",
    "bucket_gaussian": "Gaussian of each bin",
    "exact_rotation": "Gaussian before RoPE, turned",
    BEST_STATIC: "best static ranking of the text",
    PER_QUERY: "attention received per later query",
    RANDOM: "random keys",
    SHARED: "random keys, the same in all heads",
    "static_error": "static error",
    "static_error_attended": "static error, attended pairs",
    "far": "far attention",
    "ap_attended": "attended plasticity",
    "ap_aligned": "plasticity at one position",
    "ap_overall": "plasticity over a bucket",
    "entropy": "entropy",
    REVERSE: "reverse of static error",
    UNIFORM: "uniform",
}
_SHORT = {BEST_STATIC: "best static"}


def words(name: str, *, short: bool = False) -> str:
    """The name of a score or of an order."""
    base, _, times = name.partition(" × ")
    text = _SHORT.get(base, _WORDS[base]) if short else _WORDS[base]
    return f"{text} × length of the value" if times else text


def percent(share: float) -> str:
    """A share of keys."""
    return f"{100 * share:g} %"
