"""The dump of queries and keys: the contract between capture and analysis."""
