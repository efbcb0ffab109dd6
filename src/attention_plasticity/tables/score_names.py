"""Names of the files of the verb `fidelity`, and of its scores in words, in their order."""

from __future__ import annotations

FIDELITY_FILE, FIDELITY_FACTS = "head_fidelity.csv", "fidelity.json"
BEST_STATIC, BEST_PER_QUERY = "best_static", "best_per_query"
SCORE_WORDS = {
    "key_norm": "small key norm",
    "q_filter": "Q-Filter",
    "gaussian": "Gaussian after RoPE",
    "expected_attention": "Expected Attention",
    "triattention": "TriAttention",
    "bucket_gaussian": "Gaussian of each bin",
    "exact_rotation": "exact rotation",
    BEST_STATIC: "best static ranking",
    BEST_PER_QUERY: "best keys per query",
}
LIMITS = (BEST_STATIC, BEST_PER_QUERY)
"""What a score could reach if it knew the queries of the text."""
QUANTITIES = {"spearman": 0.0, "kept_50": 0.5, "kept_25": 0.25, "kept_10": 0.1}
"""Columns, with the value of a random order of keys."""
QUANTITY_WORDS = {
    "spearman": "Spearman correlation",
    "kept_50": "attention kept with 50 % of keys",
    "kept_25": "attention kept with 25 % of keys",
    "kept_10": "attention kept with 10 % of keys",
}
