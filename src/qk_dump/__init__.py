"""The dump of queries and keys: the file format between capture and analysis."""
