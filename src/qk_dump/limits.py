"""Limits on numbers that a file or a setting claims, checked before anything is sized by them."""

from __future__ import annotations

MOST_LAYERS = 1000
MOST_HEADS = 4096  # of a layer
MOST_HEADS_IN_ALL = 262_144  # layers times query heads of a layer
MOST_DIMENSIONS = 4096  # of a vector; the analysis holds d × d matrices
MOST_POSITIONS = 2**31 - 1  # position is an int32
MOST_EXAMPLES = 2**31 - 1  # example_id is an int32
MOST_COLUMNS = 1000  # of a Parquet file
MOST_FOOTER_BYTES = 256 << 20  # of a Parquet file


def require_head_count(num_layers: int, num_q_heads: int) -> None:
    """Raise a `ValueError` when a model would have more query heads than any has."""
    if num_layers * num_q_heads > MOST_HEADS_IN_ALL:
        raise ValueError(
            f"{num_layers:,} layers of {num_q_heads:,} query heads are more than "
            f"{MOST_HEADS_IN_ALL:,} heads in all"
        )
