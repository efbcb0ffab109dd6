"""Public functions about plasticity and key pairs. They are in `attention_plasticity.numeric`."""

from attention_plasticity.numeric.from_arrays import compute_attention_plasticity
from attention_plasticity.numeric.key_pairs import sample_key_pairs
from attention_plasticity.numeric.profile import AttentionPlasticity

__all__ = ["AttentionPlasticity", "compute_attention_plasticity", "sample_key_pairs"]
