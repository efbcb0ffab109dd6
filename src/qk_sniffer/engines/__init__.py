"""Engines: what runs a model and shows its attention calls."""
