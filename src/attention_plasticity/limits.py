"""How large a head may be. Nothing is sized by what a file claims before it is held against these.

The analysis and the dry run say the same of a head that is too large.
"""

from __future__ import annotations

from pathlib import Path

from qk_toolkit.errors import HeadError

MOST_BUCKETS = 1024
MOST_COVARIANCES = 1 << 28  # numbers in the covariances of all query buckets: 2 GiB, twice
MOST_PAIRS = 1 << 25  # key pairs of a head: some 3 GiB of indices

_WIDER_BUCKETS = "Capture with a larger min_bucket_size."


def require_buckets(buckets: int, folder: Path) -> None:
    """Refuse a head whose table of bucket × bucket cells would be too large."""
    if buckets > MOST_BUCKETS:
        raise HeadError(
            f"{folder}: holds {buckets:,} buckets; a head may have at most {MOST_BUCKETS:,}. "
            f"{_WIDER_BUCKETS}"
        )


def require_covariances(buckets: int, width: int, folder: Path) -> None:
    """Refuse a head whose query buckets have covariances that are too large together."""
    if buckets * width**2 > MOST_COVARIANCES:
        raise HeadError(
            f"{folder}: {buckets:,} query buckets of {width:,} dimensions have covariances of "
            f"{16 * buckets * width**2 / 2**30:.0f} GiB; at most {MOST_COVARIANCES >> 26} GiB can "
            f"be held. {_WIDER_BUCKETS}"
        )


def require_pairs(pairs: int, per_bucket: int, buckets: int, folder: Path) -> None:
    """Refuse a number of key pairs that is too large."""
    if pairs > MOST_PAIRS:
        raise HeadError(
            f"{folder}: num_pairs_per_bucket {per_bucket:,} gives {pairs:,} pairs in {buckets:,} "
            f"key buckets; a head may have at most {MOST_PAIRS:,}. Lower num_pairs_per_bucket."
        )
