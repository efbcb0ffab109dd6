"""How well scores rank keys without a query, measured with the attention of a dump."""
