"""Rows: what is kept of the attention calls of one forward."""
