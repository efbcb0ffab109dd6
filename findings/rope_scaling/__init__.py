"""The study of RoPE that is scaled without training."""
