"""Several runs side by side: summaries, differences, correlations with scores, and their tables."""
