"""Names of columns that several tables and readers share."""

from __future__ import annotations

FIFTHS = ("ap_first20", "ap_20to40", "ap_40to60", "ap_60to80", "ap_last20")
MEAN_COLUMNS = ("ap_overall", *FIFTHS, "ap_drop")
"""Means of plasticity over query buckets. Each has a standard error and a bias."""

ATTENTION_MEANS = ("attn_entropy", "attn_sink_mass", "attn_distant_mass", "attn_max_logit")
"""Means over queries of the attention columns of a dump. Each has a standard error."""
ATTENDED = "ap_attended"
ATTENDED_COUNTED = "ap_attended_counted"

DISTANCES = (0, *(1 << power for power in range(23)))  # first distances of the bins of attention
MASS_COLUMNS = tuple(f"mass_{distance}" for distance in DISTANCES)
BUCKET_MEANS = ("entropy", "sink_mass", "max_logit")  # columns of the table of attention

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
CHUNKED_ATTENTION = "chunked_attention"
"""Types of layers, with the names that transformers uses. A dump can have others."""

GROUPS = 16  # of texts
GROUP_COLUMNS = tuple(f"group_{group:02d}" for group in range(GROUPS))
BUCKET_QUANTITY = "ap_bucket"  # plasticity of one query bucket, in the table of influences
