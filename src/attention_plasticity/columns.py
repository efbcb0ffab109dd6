"""Names of columns that several tables and readers share."""

from __future__ import annotations

FIFTHS = ("ap_first20", "ap_20to40", "ap_40to60", "ap_60to80", "ap_last20")
MEAN_COLUMNS = ("ap_overall", *FIFTHS, "ap_drop")
"""Means of plasticity over query buckets. Each has a standard error and a bias."""

GROUPS = 16  # of texts
GROUP_COLUMNS = tuple(f"group_{group:02d}" for group in range(GROUPS))
BUCKET_QUANTITY = "ap_bucket"  # plasticity of one query bucket, in the table of influences
