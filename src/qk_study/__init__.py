"""Studies that need both stages: a capture, then its analysis."""
