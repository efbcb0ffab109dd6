"""Limits on numbers in files and settings, checked before memory is allocated for them."""

from __future__ import annotations

MOST_LAYERS = 1000
MOST_HEADS = 4096  # per layer
MOST_HEADS_IN_ALL = 262_144  # layers times query heads per layer
MOST_DIMENSIONS = 4096  # of a vector; the analysis needs d × d matrices
MOST_POSITIONS = 2**31 - 1  # position is an int32
MOST_EXAMPLES = 2**31 - 1  # example_id is an int32
MOST_COLUMNS = 1000  # of a Parquet file
MOST_FOOTER_BYTES = 256 << 20  # of a Parquet file
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-30, 1e30  # scale and soft-cap of logits, which are float32


def require_multiple(num_q_heads: int | None, num_k_heads: int | None) -> None:
    """Raise a `ValueError` when each key head cannot have the same number of query heads."""
    if num_q_heads and num_k_heads and num_q_heads % num_k_heads:
        raise ValueError(
            f"num_q_heads: {num_q_heads} is not a multiple of num_k_heads {num_k_heads}; set both "
            "as in the model's config.json"
        )


def require_head_count(num_layers: int, num_q_heads: int) -> None:
    """Raise a `ValueError` for a model with more than `MOST_HEADS_IN_ALL` query heads."""
    if num_layers * num_q_heads > MOST_HEADS_IN_ALL:
        raise ValueError(
            f"{num_layers:,} layers of {num_q_heads:,} query heads are more than "
            f"{MOST_HEADS_IN_ALL:,} heads in all"
        )
