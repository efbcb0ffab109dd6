"""Baselines of a run: the same capture with random weights and with shuffled tokens."""
