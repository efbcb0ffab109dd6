"""Comparison of several runs: table, figures, and correlation with benchmark scores."""
