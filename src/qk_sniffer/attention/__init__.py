"""The attention of sampled queries: sums over all keys that a query sees."""
