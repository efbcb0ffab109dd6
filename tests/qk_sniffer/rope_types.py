"""A tiny model of every rope type."""

from dataclasses import replace

from tiny_models import ARCHITECTURES

CONTEXT = 64  # of the original training
ROPE = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {"factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [3.0] * 8},
    "proportional": {"partial_rotary_factor": 0.5},
}
DEPENDENT = {"dynamic", "longrope"}
"""Their frequencies depend on the length of a text."""


def model_of(rope_type):
    """A llama of two layers with this rope type."""
    rope = {"rope_type": rope_type, "rope_theta": 10_000.0, **ROPE[rope_type]}
    if rope_type in ("yarn", "llama3", "longrope"):
        rope["original_max_position_embeddings"] = CONTEXT
    llama = ARCHITECTURES["llama"]
    changes = {"max_position_embeddings": CONTEXT, "rope_parameters": rope, "num_hidden_layers": 2}
    return replace(llama, config={**llama.config, **changes}).model()
