"""Limits on the size of a head, for the analysis and for the dry run."""

from __future__ import annotations

from qk_dump.remote import DumpPath
from qk_toolkit.errors import HeadError

MOST_BUCKETS = 1024
MOST_COVARIANCES = 1 << 28  # numbers in the covariances of all query buckets: 2 GiB, stored twice
MOST_PAIRS = 1 << 25  # key pairs of a head: about 3 GiB of indices

_WIDER_BUCKETS = "Capture with a larger min_bucket_size."


def require_buckets(buckets: int, folder: DumpPath) -> None:
    """Raise a `HeadError` if the table of bucket × bucket cells would be too large."""
    if buckets > MOST_BUCKETS:
        raise HeadError(
            f"{folder}: holds {buckets:,} buckets; a head may have at most {MOST_BUCKETS:,}. "
            f"{_WIDER_BUCKETS}"
        )


def require_covariances(buckets: int, width: int, folder: DumpPath) -> None:
    """Raise a `HeadError` if the covariances of the query buckets need too much memory."""
    if buckets * width**2 > MOST_COVARIANCES:
        raise HeadError(
            f"{folder}: {buckets:,} query buckets of {width:,} dimensions need "
            f"{16 * buckets * width**2 / 2**30:.0f} GiB for their covariances; the limit is "
            f"{MOST_COVARIANCES >> 26} GiB. {_WIDER_BUCKETS}"
        )


def require_pairs(pairs: int, per_bucket: int, buckets: int, folder: DumpPath) -> None:
    """Raise a `HeadError` if there would be too many key pairs."""
    if pairs > MOST_PAIRS:
        raise HeadError(
            f"{folder}: num_pairs_per_bucket {per_bucket:,} gives {pairs:,} pairs in {buckets:,} "
            f"key buckets; a head may have at most {MOST_PAIRS:,}. Lower num_pairs_per_bucket."
        )
