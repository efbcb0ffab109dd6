"""Texts: where they come from, and their tokens."""
