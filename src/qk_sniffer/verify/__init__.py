"""Captured vectors checked against the attention weights of the model."""
